"""Parts: the records that an objective is composed of.

A part is one definition: a function, which is its maths, under the decorator of its kind. The
decorator makes a frozen record of what else an objective has to know about it: hyperparameters with
their domains and defaults, the data of a batch that the function reads, and the statistics of the
whole batch that it decides by.

    @mask(hyperparameters=(WIDTH,), data=(RATIO,))
    def log_band(x):
        '''Passes tokens whose log-ratio lies within log_width of 0.'''
        return jnp.abs(level_log_ratio(x)) <= x.hyperparameters["log_width"]

Two records are equal if they have the same name, function, data and statistics. They are part of
the structure that jax compiles for: define them once, at the top of a module.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

# In `Part.data`: the log-probs of the objective's ratio reference.
RATIO = "ratio"


@dataclass(frozen=True)
class Hyperparameter:
    """A hyperparameter of a part. Its values are leaves: any runs in one compilation.

    Attributes:
        name: unique among all parts, except where parts share the record.
        meaning: a phrase.
        default: None if a value must be given.
        low: lower end of the domain.
        high: upper end of the domain.
        above: True if `low` itself is excluded.
        infinite: True if infinity is a value.
    """

    name: str
    meaning: str
    default: float | None = None
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    infinite: bool = False

    @property
    def domain(self) -> str:
        """The domain in words."""
        bounds = [f"{'>' if self.above else '>='} {self.low:g}"] if self.low > -math.inf else []
        bounds += [f"<= {self.high:g}"] if self.high < math.inf else []
        bounds += ["finite"] if self.high == math.inf and not self.infinite else []
        return " and ".join(bounds) or "any number"

    def contains(self, value: float) -> bool:
        """Returns True if `value` lies in the domain. NaN does not."""
        if not (math.isfinite(value) or (self.infinite and value == math.inf)):
            return False
        return (value > self.low if self.above else value >= self.low) and value <= self.high


positive = partial(Hyperparameter, low=0, above=True)
non_negative = partial(Hyperparameter, low=0)
share = partial(Hyperparameter, low=0, high=1)


@dataclass(frozen=True)
class Order:
    """A relation between two hyperparameters of a part: larger >= smaller + offset."""

    smaller: str
    larger: str
    offset: float = 0.0


@dataclass(frozen=True)
class Statistic:
    """A statistic that is gathered from the whole global batch before any loss is computed.

    Attributes:
        names: keys of `BatchStats.gathered`.
        function: maps `LossInputs` of the global batch to arrays by these names.
        of_policy: False if it needs no log-probs of the policy.
    """

    names: tuple[str, ...]
    function: Callable
    of_policy: bool = True


@dataclass(frozen=True)
class Part:
    """A part of an objective.

    Attributes:
        name: the word for it in options and configurations.
        function: the maths; the kind says what it takes and returns.
        hyperparameters: those that the function reads.
        order: relations between them.
        data: optional fields of `Batch` that the function reads, or `RATIO`.
        gathers: statistics of the global batch that it reads.
        description: one sentence, the first paragraph of the function's docstring by default.
    """

    name: str
    function: Callable
    hyperparameters: tuple[Hyperparameter, ...] = field(default=(), compare=False)
    order: tuple[Order, ...] = field(default=(), compare=False)
    data: tuple[str, ...] = ()
    gathers: tuple[Statistic, ...] = ()
    description: str = field(default="", compare=False)

    def __call__(self, *arguments, **options):
        """Applies the function."""
        return self.function(*arguments, **options)


@dataclass(frozen=True)
class Advantage(Part):
    """Computes advantages: `RewardInputs` to [responses], or `ShapedData` if it drops responses.

    Attributes:
        drops: the responses that it drops, a phrase; empty if it drops none.
        random: True if it draws at random and so needs a PRNG key.
        acts_without_variance: True if a group of equal rewards has advantages other than 0.
        of_components: True if it reads the components of the reward.
    """

    drops: str = ""
    random: bool = False
    acts_without_variance: bool = False
    of_components: bool = False


@dataclass(frozen=True)
class Shaping(Part):
    """Changes rewards before the advantages: `RewardInputs` to (rewards [responses], dropped
    [responses] or None).

    Attributes:
        drops: the responses that it drops, a phrase; empty if it drops none.
    """

    drops: str = ""


@dataclass(frozen=True)
class Returns(Part):
    """Makes what advantages are taken of in place of rewards, turn by turn: `RewardInputs` to
    [responses, turns].
    """


@dataclass(frozen=True)
class Level(Part):
    """Takes log-ratios over tokens, responses or groups: `LossInputs` to [tokens].

    Attributes:
        of_response: False if the log-ratio of a token depends on that token alone.
    """

    of_response: bool = True


@dataclass(frozen=True)
class RatioReference(Part):
    """The policy that ratios are taken to: `LossInputs` to [tokens] log-probs."""


@dataclass(frozen=True)
class Weight(Part):
    """Importance weight W: `LossInputs` to ([tokens], [tokens] True where a bound acted)."""


@dataclass(frozen=True)
class Mask(Part):
    """Gradient mask M: `LossInputs` to [tokens], True where the gradient passes."""


@dataclass(frozen=True)
class Term(Part):
    """The policy-gradient term: `LossInputs` to `Contribution`.

    Attributes:
        uses: which of "mask" and "weight" it reads of the objective.
        of_responses: True for a regression on whole responses, which no correction or filter
            applies to.
        separates_experts: True if an expert's responses are aggregated apart, and have ratio 1.
        differentiated: True if the function returns [tokens] losses that jax differentiates, and
            takes hyperparameters as keyword arguments: a loss of the user's own.
    """

    uses: tuple[str, ...] = ()
    of_responses: bool = False
    separates_experts: bool = False
    differentiated: bool = False


@dataclass(frozen=True)
class Correction(Part):
    """Corrects for data that another engine sampled: `LossInputs` to ([tokens] factors, [tokens]
    True where a bound acted).
    """


@dataclass(frozen=True)
class Filter(Part):
    """Leaves out responses or turns: `LossInputs` to [tokens], True where these are kept."""


@dataclass(frozen=True)
class Penalty(Part):
    """Additive regulariser: `LossInputs` to [tokens], or to [responses].

    Attributes:
        of_responses: True if it returns [responses].
    """

    of_responses: bool = False


@dataclass(frozen=True)
class Aggregation(Part):
    """The divisor of each response's sum of terms: (`Counts`, lengths [responses],
    hyperparameters) to an array that broadcasts to [responses].
    """


def _decorator(kind: type[Part]) -> Callable:
    def decorate(function: Callable | None = None, /, *, name: str | None = None, **fields):
        def record(function: Callable) -> Part:
            first = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
            return kind(
                name=name or function.__name__,
                function=function,
                **{"description": first, **fields},
            )

        return record if function is None else record(function)

    return decorate


# `@mask` or `@mask(hyperparameters=..., data=...)` above a function makes a `Mask` of it; the name
# is the function's unless `name` is given.
advantage = _decorator(Advantage)
shaping = _decorator(Shaping)
returns = _decorator(Returns)
level = _decorator(Level)
ratio_reference = _decorator(RatioReference)
weight = _decorator(Weight)
mask = _decorator(Mask)
term = _decorator(Term)
correction = _decorator(Correction)
filter_ = _decorator(Filter)
penalty = _decorator(Penalty)
aggregation = _decorator(Aggregation)
