"""What is written of a configuration's fields is there, and is true."""

import json
import math
import typing

import pytest

from grre_jax.config import Config
from grre_jax.domains import ConfigError, plain
from grre_jax.training.config.run import fields, override, with_fields

DEFAULT = Config(name="default")
FIELDS = {field.name: field for field in fields(DEFAULT)}


def outside(field):
    """Values of a field that are just outside of its annotation, and of another type."""
    yield object()
    kind = plain(field.annotation)
    if kind is not bool:
        yield True
    if kind in (int, float):
        yield from ("1", math.nan, math.inf)
    if kind is int:
        yield 2**63
    if typing.get_origin(field.annotation) is typing.Annotated:
        kind, interval = typing.get_args(field.annotation)
        low, high = map(float, interval[1:-1].split(","))
        step = 1 if kind is int else 1e-9
        yield kind(low) - step
        yield from [kind(low)] if interval[0] == "(" else []
        yield from [kind(high)] if interval[-1] == ")" and high < math.inf else []
        yield from [kind(high) + 2 * step] if high < 2**62 else []


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, field in FIELDS.items()
        if typing.get_origin(plain(field.annotation)) is not dict
    ],
)
def test_values_outside_of_the_domain_are_refused_by_name(name):
    for value in outside(FIELDS[name]):
        changes = value
        for part in reversed(name.split(".")):
            changes = {part: changes}
        with pytest.raises(ConfigError) as caught:
            with_fields(DEFAULT, changes)
        assert caught.value.field == name and caught.value.value is value


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_can_be_set_to_its_own_value(name):
    value = FIELDS[name].default
    text = json.dumps(value) if isinstance(value, dict) else value
    assert override(DEFAULT, [f"--{name}={text}"]) == DEFAULT
