"""Fields of a configuration, overridden by dotted names on the command line."""

from collections.abc import Sequence
from typing import Any

from grre_jax.domains import literal, parse
from grre_jax.errors import UsageError
from grre_jax.training.config.fields import fields
from grre_jax.training.config.run import Config, unknown_field, with_fields


def override(config: Config, arguments: Sequence[str]) -> Config:
    """Applies `--dotted.name value` (or `--dotted.name=value`) arguments to a configuration.

    All of them are applied together, since fields must fit each other; of two values for one field
    the last counts. Entries of `options` may be new: `--objective.options.epsilon_low 0.6`; a JSON
    object gives several. Another `name` (of the objective, of the task) drops the options.

    Args:
        config: the configuration.
        arguments: words of the command line.

    Raises:
        UsageError: an unknown field, a missing value, or a value outside its domain.
    """
    table = {field.name: field for field in fields(config)}
    changes: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not equals:
            text = next(words, None)
        if not word.startswith("--") or text is None:
            raise UsageError(f"{word}: expected a field and its value: --name VALUE")
        parent, _, entry = name.rpartition(".")
        if name in table:
            _put(changes, name, parse(name, table[name].annotation, text))
        elif parent in table and isinstance(table[parent].default, dict):
            _put(changes, parent, {entry: literal(text)})
        else:
            raise unknown_field(name)
    return with_fields(config, changes)


def _put(changes: dict[str, Any], name: str, value: Any) -> None:
    """Enters a value under a dotted name; entries of a dictionary are added to earlier ones."""
    *sections, last = name.split(".")
    for section in sections:
        changes = changes.setdefault(section, {})
    changes[last] = changes.get(last, {}) | value if isinstance(value, dict) else value
