"""Types and intervals of fields: the values that are taken, and what an error names."""

import dataclasses
import pickle
from typing import Annotated, Any, Literal

import pytest

from grre_jax.domains import ConfigError, Count, Record, Seed, Share, checked, parse

INF = float("inf")
NAN = float("nan")
Half = Annotated[float, "[0, 1)"]
Words = Literal["", "slow", "fast"]


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Count, 3, 3),
        (Share, 1, 1.0),
        (Seed, 2**63 - 1, 2**63 - 1),
        (Annotated[float, "(0, inf)"], 1e-9, 1e-9),
        (bool, True, True),
        (Words, "", ""),
        (str | None, None, None),
        (Count | None, 3, 3),
        (tuple[Count, ...], [1, 2], (1, 2)),
        (dict[str, Share], {"a": 1}, {"a": 1.0}),
    ],
)
def test_values_that_are_taken(annotation, value, expected):
    taken = checked("x", annotation, value)
    assert taken == expected and type(taken) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (Count, (-1, 2**31, 10**400, 1.0, "1", True, None, NAN, [1])),
        (Seed, (-1, 2**63)),
        (Share, (-1e-9, 1.1, NAN, INF, "0.5", False, 1j)),
        (Half, (1, 1.0)),
        (Annotated[float, "(0, inf)"], (0, INF, NAN)),
        (float, (INF, -INF, NAN, 10**400, "1")),
        (bool, (1, 0, "true", None)),
        (Words, ("Slow", None, ["slow"], 1)),
        (str | None, (3, b"x")),
        (Literal[True, "a"], (1, 1.0, "b")),
        (Count | None, (-1, "none")),
        (tuple[Count, ...], ("12", 1, {1})),
        (dict[str, Any], ([("a", 1)], {1: 2}, "{}")),
    ],
)
def test_values_that_are_refused(annotation, values):
    for value in values:
        with pytest.raises(ConfigError) as caught:
            checked("x", annotation, value)
        assert caught.value.field == "x" and caught.value.value is value


@pytest.mark.parametrize(
    ("annotation", "text", "expected"),
    [
        (Count, "7", 7),
        (Share, "1", 1.0),
        (bool, "FALSE", False),
        (str, "none", "none"),
        (str | None, "None", None),
        (Words, "fast", "fast"),
        (tuple[str, ...], "a, b", ("a", "b")),
        (tuple[str, ...], "['a,b']", ("a,b",)),
        (tuple[str, ...], "", ()),
        (tuple[str, ...], "\n", ("\n",)),
        (tuple[str, ...], " Q:\n", (" Q:\n",)),
        (tuple[str, ...], "\n, a,", ("\n", "a")),
        (dict[str, Any], '{"a": 1}', {"a": 1}),
    ],
)
def test_words_of_the_command_line(annotation, text, expected):
    value = parse("x", annotation, text)
    assert value == expected and type(value) is type(expected)


@dataclasses.dataclass(frozen=True)
class Sizes(Record):
    low: Count = 0
    high: Count = 9
    share: Share = 1.0

    def _validate(self):
        if self.low > self.high:
            raise ConfigError("low", f"at most {self.high}", self.low)


def test_a_record_checks_each_field_and_then_all_together():
    assert type(Sizes(share=1).share) is float
    for fields, name in (({"high": "9"}, "high"), ({"low": 10}, "low")):
        with pytest.raises(ConfigError) as caught:
            Sizes(**fields)
        error = caught.value
        assert (error.field, error.value) == (name, fields[name])
        assert error.within("sizes.").field == f"sizes.{name}"
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_element_of_a_tuple_is_named():
    with pytest.raises(ConfigError) as caught:
        checked("x", tuple[Words, ...], ("slow", "fasst"))
    assert caught.value.field == "x[1]"
