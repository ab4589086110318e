"""The named algorithms: each a row of a table that says which parts it is composed of, and with which numbers.

`algorithm(name, **options)` validates and builds an `Objective`. To follow a name to its gradient: its row here, `policy_loss` where the
parts meet, `weights` (or `advantages`, `regularizers`) where the part is.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import jax
import numpy as np
from jaxtyping import Array, Float

from grre_jax.objectives.aggregation import AGGREGATIONS
from grre_jax.objectives.objective import Objective
from grre_jax.objectives.regularizers import KL_ESTIMATORS, KL_REFERENCES

REC = ("Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm", "https://arxiv.org/abs/2509.24203")
GRPO = ("DeepSeekMath", "https://arxiv.org/abs/2402.03300")
KIMI = ("Kimi k1.5", "https://arxiv.org/abs/2501.12599")
ASYMRE = ("Asymmetric REINFORCE for off-Policy Reinforcement Learning", "https://arxiv.org/abs/2506.20520")
TRINITY = ("Trinity-RFT", "https://arxiv.org/abs/2505.17826")


@dataclass(frozen=True)
class Number:
    """A number of an objective: what it is, its default (None: must be given), and its domain [low, high] (low excluded if `above`)."""

    meaning: str
    default: float | None = None
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    infinite: bool = False

    @property
    def domain(self) -> str:
        """The domain in words, for messages and tables."""
        bounds = [f"{'>' if self.above else '>='} {self.low:g}"] if self.low > -math.inf else []
        bounds += [f"<= {self.high:g}"] if self.high < math.inf else []
        return " and ".join(bounds) or "finite"

    def holds(self, value: float) -> bool:
        """Whether `value` lies in the domain (NaN does not)."""
        if not (math.isfinite(value) or (self.infinite and value == math.inf)):
            return False
        return (value > self.low if self.above else value >= self.low) and value <= self.high


NUMBERS: Mapping[str, Number] = MappingProxyType(
    {
        "epsilon_low": Number("lower clip range: ratios from 1 - epsilon_low", 0.2, low=0, high=1),
        "epsilon_high": Number("upper clip range: ratios up to 1 + epsilon_high", 0.2, low=0, infinite=True),
        "epsilon_low_prime": Number("outer lower range of the ring, at least epsilon_low", 0.6, low=0, high=1),
        "epsilon_high_prime": Number("outer upper range of the ring, at least epsilon_high", 2.0, low=0, infinite=True),
        "std_epsilon": Number("added to the standard deviation of a group's rewards", 1e-6, low=0, above=True),
        "beta": Number("how far the baseline is lowered, in units of reward", 0.1),
        "tau": Number("temperature, in units of reward", 1.0, low=0, above=True),
        "coefficient": Number("weight of the squared log-ratio", 0.1, low=0),
        "kl_coef": Number("weight of the KL penalty", 0.0, low=0),
        "constant_length": Number('tokens a response is taken to have by aggregation="constant"', low=0, above=True),
    }
)

# The numbers that each part of an objective reads.
PART_NUMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "one_side": ("epsilon_low", "epsilon_high"),
        "two_side": ("epsilon_low", "epsilon_high"),
        "ring": ("epsilon_low", "epsilon_high", "epsilon_low_prime", "epsilon_high_prime"),
        "group_std": ("std_epsilon",),
        "group_std_sample": ("std_epsilon",),
        "asymre": ("beta",),
        "log_mean_exp": ("tau",),
        "exponential": ("tau",),
        "inverse_temperature": ("tau",),
        "token_square": ("coefficient",),
        "response_square": ("tau",),
        "constant": ("constant_length",),
        **{f"kl_{estimator}_{reference}": ("kl_coef",) for estimator in KL_ESTIMATORS for reference in KL_REFERENCES},
    }
)

# Structural options that every algorithm takes, with their values; the first is the default (an algorithm may have an aggregation of its
# own).
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "aggregation": tuple(AGGREGATIONS),
        "denominator": ("all", "kept"),
        "single": ("zero", "reward"),
        "kl_estimator": ("k3", "k1", "k2"),
        "kl_reference": KL_REFERENCES,
    }
)


@dataclass(frozen=True)
class _Row:
    """A row of the table. `variants` maps the values of the option `variant` to advantages, the first being the default."""

    formula: str
    paper: tuple[str, str]
    variants: Mapping[str, str]
    weight: str = "one"
    mask: str = "none"
    penalties: tuple[str, ...] = ()
    aggregation: str = "token"
    defaults: Mapping[str, float] = field(default_factory=dict)


_MEAN = {"mean": "group_mean"}
_REC = {"mean": "group_mean", "std": "group_std"}  # the paper's scripts divide by the std in their wide-range runs
_GRPO = {"population": "group_std", "sample": "group_std_sample"}

_ONE_SIDE = "1[A >= 0, rho <= 1 + e_high] or 1[A <= 0, rho >= 1 - e_low]"
_TWO_SIDE = "1[1 - e_low <= rho <= 1 + e_high]"
_RING = "two-side or 1[A >= 0, rho <= 1 - e'_low] or 1[A <= 0, rho >= 1 + e'_high]"

_TABLE: Mapping[str, _Row] = MappingProxyType(
    {
        "reinforce": _Row("A = r - mean(r); g = -A grad l", REC, _MEAN),
        "grpo": _Row(f"A = (r - mean(r)) / (std(r) + e); g = -A rho M grad l; M = {_ONE_SIDE}", GRPO, _GRPO, "ratio", "one_side"),
        "rec_oneside_is": _Row(f"A = r - mean(r); g = -A rho M grad l; M = {_ONE_SIDE}", REC, _REC, "ratio", "one_side"),
        "rec_oneside_nois": _Row(f"A = r - mean(r); g = -A M grad l; M = {_ONE_SIDE}", REC, _REC, "one", "one_side"),
        "rec_twoside_is": _Row(f"A = r - mean(r); g = -A rho M grad l; M = {_TWO_SIDE}", REC, _REC, "ratio", "two_side"),
        "rec_twoside_nois": _Row(f"A = r - mean(r); g = -A M grad l; M = {_TWO_SIDE}", REC, _REC, "one", "two_side"),
        "rec_ring_is": _Row(f"A = r - mean(r); g = -A rho M grad l; M = {_RING}", REC, _REC, "ratio", "ring"),
        "rec_ring_nois": _Row(f"A = r - mean(r); g = -A M grad l; M = {_RING}", REC, _REC, "one", "ring"),
        "opmd": _Row(
            "REINFORCE + (tau / 2) (l_i - l_old,i)^2 a response",
            KIMI,
            _MEAN,
            penalties=("response_square",),
            aggregation="group",
            defaults={"tau": 0.1},
        ),
        "opmd_token": _Row("REINFORCE + c (l - l_old)^2 a token", REC, _MEAN, penalties=("token_square",)),
        "opmd_logavgexp": _Row(
            "A = r - tau log mean exp(r / tau); g = -A / (1 + tau) grad l", TRINITY, {"mean": "log_mean_exp"}, "inverse_temperature"
        ),
        "asymre": _Row("A = r - (mean(r) - beta); g = -A grad l", ASYMRE, {"mean": "asymre"}),
        "red_drop": _Row("drop extra negatives (r < mean(r)) at random; A = r - mean(kept r); g = -A grad l", REC, {"mean": "red_drop"}),
        "red_weight": _Row("A = r - mean(r); g = -A exp(A / tau) grad l", REC, _MEAN, "exponential"),
    }
)


@dataclass(frozen=True)
class AlgorithmRow:
    """What a table of algorithms shows of one.

    Attributes:
      name: for `algorithm(name)`.
      formula: advantage and gradient of a token.
      defaults: the numbers and structural options it has, with their defaults.
      variants: values of the option `variant`, the default first.
      requires: the optional token data of a batch that it needs, by default.
      paper: title.
      link: of the paper.
    """

    name: str
    formula: str
    defaults: Mapping[str, float | str]
    variants: tuple[str, ...]
    requires: frozenset[str]
    paper: str
    link: str


def algorithms() -> tuple[str, ...]:
    """The names that `algorithm` knows."""
    return tuple(_TABLE)


def algorithm_table() -> list[AlgorithmRow]:
    """One row an algorithm, in the order of `algorithms()`."""
    rows = []
    for name, row in _TABLE.items():
        objective = algorithm(name)
        defaults = {**objective.numbers, "aggregation": objective.aggregation}
        rows.append(AlgorithmRow(name, row.formula, defaults, tuple(row.variants), objective.requires, *row.paper))
    return rows


def algorithm(name: str, **options: float | str | Float[Array, "..."]) -> Objective:
    """Builds a named objective, and refuses what makes no sense.

    Args:
      name: one of `algorithms()`.
      **options: numbers of the algorithm (see `algorithm_table()`), which may be traced, and the structure that any of them takes:
        variant: which of the implementations that differ, where a row has several ("population" or "sample" std for grpo, "mean" or
          "std" for rec_*).
        aggregation: "token", "group", "response", "response_sum" or "constant" (then constant_length is needed).
        denominator: "all", or "kept" to leave dropped responses out of the aggregation's counts.
        single: "zero", or "reward" for a baseline of 0 in groups of one.
        kl_coef, kl_estimator, kl_reference: a KL penalty, "k3" to the "reference" policy unless said otherwise ("behavior": the data's).
          It is part of the structure if kl_estimator is given or kl_coef is not the number 0.

    Returns:
      The `Objective`.

    Raises:
      ValueError: for an unknown name, option or value (with the nearest ones), or a number outside its domain.
    """
    if name not in _TABLE:
        raise ValueError(f"unknown algorithm {name!r}{_nearest(name, _TABLE)}; there are {', '.join(_TABLE)}")
    row = _TABLE[name]
    options = dict(options)
    variant = _choose(name, "variant", options.pop("variant", None), tuple(row.variants))
    choices = {option: _choose(name, option, options.get(option), values) for option, values in CHOICES.items()}
    aggregation = choices["aggregation"] if options.get("aggregation") is not None else row.aggregation
    coefficient = options.get("kl_coef", 0)
    penalized = options.get("kl_estimator") is not None or not (isinstance(coefficient, int | float) and coefficient == 0)
    penalties = row.penalties + ((f"kl_{choices['kl_estimator']}_{choices['kl_reference']}",) if penalized else ())

    parts = (row.variants[variant], row.weight, row.mask, aggregation, *penalties)
    wanted = [number for part in parts for number in PART_NUMBERS.get(part, ())]
    known = {*wanted, *CHOICES, "variant", "kl_coef"}
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}{_nearest(option, known)}; it has {', '.join(sorted(known))}")
    defaults = {number: row.defaults.get(number, NUMBERS[number].default) for number in wanted}
    numbers = {number: _checked(name, number, options.get(number, default)) for number, default in defaults.items()}
    if not penalized and "kl_coef" in options:
        _checked(name, "kl_coef", coefficient)
    if row.mask == "ring":
        _check_ring(name, numbers)
    return Objective(
        name=name,
        advantage=row.variants[variant],
        weight=row.weight,
        mask=row.mask,
        penalties=penalties,
        aggregation=aggregation,
        denominator=choices["denominator"],
        single=choices["single"],
        numbers=numbers,
    )


def _choose(name: str, option: str, value: str | None, values: tuple[str, ...]) -> str:
    if value is None:
        return values[0]
    if value not in values:
        raise ValueError(f"{name}: {option} must be one of {', '.join(values)}, not {value!r}{_nearest(str(value), values)}")
    return value


def _checked(name: str, number: str, value):
    """The value, as a Python float where it is a plain number; traced values cannot be looked at and pass."""
    if value is None:
        raise ValueError(f"{name}: {number} must be given ({NUMBERS[number].meaning})")
    if isinstance(value, jax.core.Tracer):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name}: {number} must be a number, not {value!r}")
    if not all(NUMBERS[number].holds(float(entry)) for entry in array.reshape(-1)):
        raise ValueError(f"{name}: {number} must be {NUMBERS[number].domain}, not {value} ({NUMBERS[number].meaning})")
    return float(value) if array.ndim == 0 and not isinstance(value, jax.Array) else value


def _check_ring(name: str, numbers: Mapping) -> None:
    for side in ("low", "high"):
        inner, outer = numbers[f"epsilon_{side}"], numbers[f"epsilon_{side}_prime"]
        if isinstance(inner, float) and isinstance(outer, float) and outer < inner:
            raise ValueError(f"{name}: epsilon_{side}_prime must be at least epsilon_{side} = {inner:g}, not {outer:g}")


def _nearest(word: str, words) -> str:
    close = difflib.get_close_matches(word, list(words), n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
