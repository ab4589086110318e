"""What is written of a configuration's fields is there, and is true."""

import json
import re

import pytest

from grre_jax.config import Config
from grre_jax.errors import UsageError
from grre_jax.training.config.fields import fields
from grre_jax.training.config.overrides import field_names, override

DEFAULT = Config(name="default")
FIELDS = {field.name: field for field in fields(DEFAULT)}


def test_every_field_has_a_meaning_and_a_domain():
    for name, field in FIELDS.items():
        assert field.meaning.endswith((".", "?")) and field.domain, name


def test_fields_are_those_that_the_command_line_prints():
    def names(values, prefix=""):
        for key, value in values.items():
            inner = isinstance(value, dict) and key not in ("options", "template_arguments")
            yield from names(value, f"{prefix}{key}.") if inner else [prefix + key]

    assert list(names(json.loads(DEFAULT.to_json()))) == list(FIELDS) == field_names(DEFAULT)


def outside(field):
    """Values just outside of the domain that is written, where it says a bound or lists words."""
    at_least = re.match(r"(?:at least|from) (-?\d+)", field.domain)
    above = re.match(r"above (\d+)", field.domain)
    below = re.search(r"below (\d+)", field.domain)
    at_most = re.search(r"(?:at most|to) (\d+)$", field.domain)
    step = 1 if field.type == "int" else 1e-3
    values = [int(at_least[1]) - step] if at_least else []
    values += [int(below[1])] if below else []
    values += [int(above[1])] if above and field.name != "sampling.temperature" else []  # in setup
    values += [int(at_most[1]) + step] if at_most else []
    listed = re.match(r'"\w+"(, "\w+")*,? (or|both)', field.domain)
    values += ["nothing_such"] if listed and "dtype" not in field.name else []  # in setup
    return values


def test_values_outside_of_the_domain_are_refused_by_name():
    for name, field in FIELDS.items():
        for value in outside(field):
            with pytest.raises(UsageError, match=re.escape(name.rpartition(".")[2])):
                override(DEFAULT, [f"--{name}={value}"])
