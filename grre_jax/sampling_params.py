"""The record of sampling parameters, which the library, the configuration and the command line
share.

A new parameter is a field here with its entry in the docstring. `SamplingConfig`,
`EvaluationConfig`, the flags of `grre sample` and `grre evaluate`, the settings in their output and
the stored groups derive from it. If it changes the distribution of a token, `part` names the class
in `distributions.truncation` that computes it.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from typing import Any

from grre_jax.domains import unexpected

CACHE_DTYPES = ("float32", "bfloat16", "int8")  # of keys and values
_INT32_MAX = 2**31 - 1


def number(default: float, low: float, high: float | None = None, **metadata: Any) -> Any:
    """Returns a field of a sampling record with its domain.

    Args:
        default: default value; an int makes the field an integer.
        low, high: bounds, both inclusive; without `high` any finite float, or any 32-bit integer.
        **metadata: `above=True` excludes `low` itself; `part` is the name of a class in
            `distributions.truncation`, of which the value is the argument.
    """
    return dataclasses.field(default=default, metadata={"low": low, "high": high, **metadata})


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """Parameters that decide what is drawn.

    Args:
        temperature (at least 0): divides the logits; 0 is greedy decoding.
        top_k (at least 0): draw from the k most likely tokens only; 0 for all.
        top_p (above 0 and at most 1): draw from the most likely tokens that together have this
            probability, after top_k; 1 for all.
        min_p (from 0 to 1): draw from tokens at least this times as likely as the most likely one,
            after top_p; 0 for all.
        max_new_tokens (at least 1): longest completion, EOS included.
        stop (strings): end a completion before the first of these in its text. The tokens end with
            the one that completes it.

    Raises:
        ValueError: a value outside its domain. The message begins with the field's name.
    """

    temperature: float = number(1.0, 0, part="Temperature")
    top_k: int = number(0, 0, part="TopK")
    top_p: float = number(1.0, 0, 1, above=True, part="TopP")
    min_p: float = number(0.0, 0, 1, part="MinP")
    max_new_tokens: int = number(256, 1)
    stop: tuple[str, ...] = ()

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if "low" in field.metadata:
                value = _checked(field, getattr(self, field.name))
                object.__setattr__(self, field.name, value)
        object.__setattr__(self, "stop", _checked_stop(self.stop))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Returns the names of the sampling parameters, without those that a subclass adds."""
        return tuple(field.name for field in dataclasses.fields(SamplingParams))

    def to_json(self) -> dict[str, Any]:
        """Returns every parameter by name, as JSON holds it."""
        return {name: getattr(self, name) for name in self.names()} | {"stop": list(self.stop)}

    def distribution_settings(self) -> dict[str, float]:
        """Returns the parameters that the distribution of a token depends on."""
        return {field.name: getattr(self, field.name) for field in _distribution_fields()}

    @property
    def truncated(self) -> bool:
        """True if some tokens may not be drawn."""
        truncations = (f for f in _distribution_fields() if f.metadata["part"] != "Temperature")
        return any(getattr(self, field.name) != field.default for field in truncations)

    @property
    def draws_from_policy(self) -> bool:
        """True if every token is drawn from the policy itself: temperature 1, no truncation."""
        return self.temperature == 1 and not self.truncated


def _distribution_fields() -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(SamplingParams) if "part" in field.metadata]


def _checked(field: dataclasses.Field, value: Any) -> float:
    """Returns the value as the field's type, an int or a float.

    Raises:
        ValueError: another type, or outside the field's domain.
    """
    low, high, whole = field.metadata["low"], field.metadata["high"], isinstance(field.default, int)
    try:
        if isinstance(value, str):
            raise TypeError
        found = operator.index(value) if whole else float(value)
    except (TypeError, ValueError):
        kind = "a whole number" if whole else "a number"
        raise unexpected(field.name, kind, value) from None
    above = field.metadata.get("above", False)
    most = high if high is not None else _INT32_MAX if whole else sys.float_info.max
    if (low < found if above else low <= found) and found <= most:
        return found
    domain = f"above {low}" if above else f"at least {low}"
    if high is not None:
        domain = f"a number in {'(' if above else '['}{low}, {high}]"
    elif found > most:
        domain += f" and at most {most}" if whole else " and finite"
    raise unexpected(field.name, domain, value)


def _checked_stop(stop: Any) -> tuple[str, ...]:
    found = (stop,) if isinstance(stop, str) else stop
    if not isinstance(found, tuple | list) or not all(isinstance(text, str) for text in found):
        raise unexpected("stop", "a string or several", stop)
    if not all(found) or any("\N{REPLACEMENT CHARACTER}" in text for text in found):
        raise unexpected("stop", "characters in each string, none of them U+FFFD", stop)
    return tuple(found)
