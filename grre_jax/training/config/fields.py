"""The fields of a configuration with their meanings, read from the docstrings of its sections.

`grre train CONFIG --print-config` prints their values, the command line overrides them by these
names, and the reference of the documentation lists them.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Sequence
from typing import Any

from grre_jax.domains import annotations, describe, documented, plain

# Names of fields in other libraries whose spelling is not near, by their last part.
FOREIGN_NAMES = {
    "lr": "optimizer.learning_rate",
    "max_grad_norm": "optimizer.clip_norm",
    "max_steps": "training.steps",
    "batch_size": "training.prompts_per_step",
    "num_generations": "sampling.group_size",
    "max_completion_length": "sampling.max_new_tokens",
    "beta": "objective.options.kl_coef",
    "kl_coef": "objective.options.kl_coef",
    "num_iterations": "regime.reuse",
    "model_name_or_path": "model.path",
    "output_dir": "run_dir",
}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        name: dotted, as on the command line.
        section: the class of its section.
        annotation: see `domains.checked`.
        type: as Python writes it, without the domain.
        default: its value in the configuration that was walked.
        required: a configuration must give it.
        domain: of its values, in words.
        meaning: in words.
    """

    name: str
    section: type
    annotation: Any
    type: str
    default: Any
    required: bool
    domain: str
    meaning: str


def fields(section: Any, prefix: str = "") -> list[Field]:
    """Returns every field of a configuration or of one of its sections, in order.

    Args:
        section: the configuration; its values become the defaults.
        prefix: of the names.

    Returns:
        The fields. One that is missing from its section's docstring has an empty meaning.
    """
    listed = []
    entries = documented(type(section))
    for field in dataclasses.fields(section):
        name = prefix + field.name
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            listed += fields(value, f"{name}.")
            continue
        annotation = annotations(type(section))[field.name]
        domain, meaning = entries.get(field.name, ("", ""))
        domain = domain or describe(annotation)
        kind = inspect.formatannotation(plain(annotation))
        required = field.default is field.default_factory is dataclasses.MISSING
        listed.append(
            Field(name, type(section), annotation, kind, value, required, domain, meaning)
        )
    return listed


def similar_fields(names: Sequence[str], name: str) -> list[str]:
    """Returns the fields that an unknown dotted name probably means, at most three: that of another
    library's name, one with a similar spelling, or those with the same last part or in
    a section of that name.
    """
    leaf = name.rpartition(".")[2]
    if leaf in FOREIGN_NAMES:
        return [FOREIGN_NAMES[leaf]]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    related = [
        field for field in names if field.endswith(f".{leaf}") or field.startswith(f"{name}.")
    ]
    return close or related[:3]
