"""The fields of a configuration with their meanings, read from the docstrings of its sections.

`grre train CONFIG --print-config` prints their values, the command line overrides them by these
names, and the reference of the documentation lists them.
"""

import dataclasses
import inspect
from typing import Any

from grre_jax.domains import annotations, describe, documented, plain


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        name: dotted, as on the command line.
        annotation: see `domains.checked`.
        type: as Python writes it, without the domain.
        default: its value in the configuration that was walked.
        required: a configuration must give it.
        domain: of its values, in words.
        meaning: in words.
    """

    name: str
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
        listed.append(Field(name, annotation, kind, value, required, domain, meaning))
    return listed
