"""An objective and the parts that it is composed of.

A part is one definition: a function, which is its maths, under the decorator of its kind. The
decorator makes a frozen record of what else an objective reads of it: hyperparameters with their
domains and defaults, the data of a batch that the function reads, and the statistics of the whole
batch that it decides by.

    @mask(hyperparameters=(WIDTH,), data=(RATIO,))
    def log_band(x):
        '''Passes tokens whose log-ratio lies within log_width of 0.'''
        return jnp.abs(level_log_ratio(x)) <= x.hyperparameters["log_width"]

Two records are equal if they have the same name, function, data and statistics. They are part of
the structure that jax compiles for: define them once, at the top of a module.

An objective has one part of most kinds. The parts determine the program. Every hyperparameter (an
epsilon, a temperature, a coefficient) is a leaf of a pytree, so that one compiled step serves any
value and `jax.vmap` over a stacked objective sweeps them.
"""

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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

    Examples:
        A mask of one's own with a hyperparameter, in place of an algorithm's:

        >>> import jax.numpy as jnp
        >>> from grre_jax import objectives
        >>> width = objectives.Hyperparameter("log_width", "half-width of the band", 0.5, low=0)
        >>> @objectives.mask(hyperparameters=(width,), data=(objectives.RATIO,))
        ... def log_band(x):
        ...     return jnp.abs(x.log_ratio) <= x.hyperparameters["log_width"]
        >>> objective = objectives.algorithm("reinforce", mask=log_band, log_width=0.3)
        >>> width.domain, objective.hyperparameters
        ('>= 0 and finite', {'log_width': 0.3})
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
        bounds = {
            f"{'>' if self.above else '>='} {self.low:g}": self.low > -math.inf,
            f"<= {self.high:g}": self.high < math.inf,
            "finite": self.high == math.inf and not self.infinite,
        }
        return " and ".join(words for words, bound in bounds.items() if bound) or "any number"

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
        function: the maths; its arguments and result are those of the kind.
        hyperparameters: those that the function reads.
        order: relations between them.
        data: optional fields of `Batch` that the function reads, or `RATIO`.
        gathers: statistics of the global batch that it reads.
        description: one sentence, the first paragraph of the function's docstring by default.
    """

    name: str
    function: Callable
    # Domains, orders and descriptions change no program, so that they are no part of the structure
    # that jax compiles for.
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
        of_components: True if it reads the components of the reward.
    """

    drops: str = ""
    random: bool = False
    of_components: bool = False


@dataclass(frozen=True)
class Shaping(Part):
    """Changes rewards before the advantages: `RewardInputs` to (rewards [responses], dropped
    [responses] or None).

    Attributes:
        drops: the responses that it drops, a phrase; empty if it drops none.
    """

    drops: str = ""


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


class RatioReference(Part):
    """The policy that ratios are taken to: `LossInputs` to [tokens] log-probs."""


class Weight(Part):
    """Importance weight W: `LossInputs` to [tokens]."""


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


class Correction(Part):
    """Corrects for data that another engine sampled: `LossInputs` to [tokens] factors."""


class Filter(Part):
    """Leaves out responses or turns: `LossInputs` to [tokens], True where these are kept."""


@dataclass(frozen=True)
class Penalty(Part):
    """Additive regulariser: `LossInputs` to [tokens], or to [responses].

    Attributes:
        of_responses: True if it returns [responses].
    """

    of_responses: bool = False


class Aggregation(Part):
    """The divisor of each response's sum of terms: (`Counts`, lengths [responses],
    hyperparameters) to an array that broadcasts to [responses].
    """


# The parts of the package by kind and name, in the order of definition.
_NAMED: dict[type[Part], dict[str, Part]] = defaultdict(dict)


def named(kind: type[Part]) -> Mapping[str, Part]:
    """Returns the parts of a kind (`Mask`, `Term`, ...) by name, in the order of definition."""
    return _NAMED[kind]


def hyperparameters() -> Mapping[str, Hyperparameter]:
    """Returns the hyperparameters of all parts of the package by name."""
    parts = (part for several in _NAMED.values() for part in several.values())
    return {each.name: each for part in parts for each in part.hyperparameters}


def _decorator(kind: type[Part]) -> Callable:
    def decorate(function: Callable | None = None, /, *, name: str | None = None, **options):
        if function is None:
            return partial(decorate, name=name, **options)
        first = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
        part = kind(name or function.__name__, function, **{"description": first, **options})
        # A user's part is not entered: it cannot take the name of one of the package.
        if function.__module__.startswith(f"{__package__}.parts."):
            _NAMED[kind][part.name] = part
        return part

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


@dataclass(frozen=True, eq=False)
class Label:
    """A name that is not part of a structure: all labels are equal, so that algorithms that
    differ in hyperparameters alone share a compilation.
    """

    text: str = ""

    def __eq__(self, other) -> bool:
        return isinstance(other, Label)

    def __hash__(self) -> int:
        # Equal labels must have equal hashes: jax finds a compiled program by hash.
        return hash(Label)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss to minimise, as parts and hyperparameters.

    Made and validated by `algorithm(name, **options)`; the constructor validates nothing, as it
    runs under jit and vmap.

    Attributes:
        label: the algorithm's name.
        advantage: makes advantages of rewards.
        shaping: what changes rewards or drops responses before that, in order.
        returns: what advantages are taken of turn by turn, or None for the rewards of responses.
        level: over what log-ratios are taken.
        weight: the importance weight W.
        mask: the gradient mask M.
        term: the policy-gradient term.
        correction: for the mismatch of the proximal and the sampling policy, or None.
        filter: of whole responses, or None.
        aggregation: the divisor of the terms.
        penalties: additive regularisers.
        ratio_reference: the policy that log-ratios are taken to.
        denominator: "all", or "kept" to leave dropped responses out of the aggregation's counts.
        singleton_baseline: baseline of a response that is alone in its group: "mean", its own
            reward, or "none", 0.
        components: the components of the reward that the advantage reads, by name; empty for all
            that are given.
        hyperparameters: the leaves: Python floats or scalar arrays (a leading axis is for
            `jax.vmap` to remove).

    Examples:
        What an algorithm needs of the data:

        >>> from grre_jax import objectives
        >>> objective = objectives.algorithm("grpo", kl_coef=0.01)
        >>> sorted(objective.requires), objective.takes_ratio, objective.aggregation.name
        (['old_logprobs', 'ref_logprobs'], True, 'token')
    """

    label: Label = Label()
    advantage: Advantage
    shaping: tuple[Shaping, ...] = ()
    returns: Returns | None = None
    level: Level
    weight: Weight
    mask: Mask
    term: Term
    correction: Correction | None = None
    filter: Filter | None = None
    aggregation: Aggregation
    penalties: tuple[Penalty, ...] = ()
    ratio_reference: RatioReference
    denominator: str = "all"
    singleton_baseline: str = "mean"
    components: tuple[str, ...] = ()
    hyperparameters: Mapping[str, float | Float[Array, "..."]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The algorithm's name, for messages and tables."""
        return self.label.text

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts whose hyperparameters, data and statistics the objective needs."""
        values = (getattr(self, each.name) for each in fields(self))
        flat = (
            each for value in values for each in (value if isinstance(value, tuple) else (value,))
        )
        # Relies on `ratio_reference` being the last field that holds a part.
        *parts, reference = (each for each in flat if isinstance(each, Part))
        takes_ratio = any(RATIO in part.data for part in parts)
        return (*parts, reference) if takes_ratio else tuple(parts)

    @property
    def takes_ratio(self) -> bool:
        """True if the loss depends on a policy ratio (per token, response or group)."""
        return self.ratio_reference in self.parts

    @property
    def requires(self) -> frozenset[str]:
        """The optional data of a `Batch` that the loss needs, e.g. {"old_logprobs", "expert"}."""
        return frozenset(name for part in self.parts for name in part.data) - {RATIO}

    @property
    def gathers(self) -> tuple[Statistic, ...]:
        """The statistics of the whole batch that it decides by."""
        # Parts may share a statistic, which is then gathered once; a set would lose the order.
        return tuple(dict.fromkeys(each for part in self.parts for each in part.gathers))

    @property
    def needs_policy_stats(self) -> bool:
        """True if `batch_stats` needs the policy's log-probs of the whole batch, not only its
        counts.
        """
        return any(statistic.of_policy for statistic in self.gathers)

    def check(self) -> None:
        """Checks that each hyperparameter is a scalar.

        Raises:
            ValueError: naming the hyperparameter.
        """
        for name, value in self.hyperparameters.items():
            if jnp.ndim(value) != 0:
                raise ValueError(
                    f"{name} has shape {jnp.shape(value)}: sweep a stacked objective with jax.vmap"
                )


_STATIC = [each.name for each in fields(Objective) if each.name != "hyperparameters"]
jax.tree_util.register_dataclass(Objective, ["hyperparameters"], _STATIC)


def stack(objectives: Sequence[Objective]) -> Objective:
    """Stacks objectives of one structure into one whose hyperparameters have a leading axis, for
    `jax.vmap`.

    `jax.vmap(lambda objective: policy_loss(objective, logprobs, batch))(stack(objectives))` sweeps
    them in one compilation.

    Args:
        objectives: at least one objective, equal in everything but their hyperparameters.

    Returns:
        An `Objective` whose hyperparameters are arrays [len(objectives)].

    Raises:
        ValueError: if two objectives differ in structure.

    Examples:
        The loss at three clip ranges, in one compilation; all ratios are 1.5:

        >>> import jax
        >>> import numpy as np
        >>> from grre_jax import objectives
        >>> ranges = [objectives.algorithm("grpo", epsilon_high=high) for high in (0.1, 0.2, 0.4)]
        >>> old = np.full((2, 2), -1.0)
        >>> batch = objectives.padded_batch(
        ...     advantages=np.array([1.0, -1.0]),
        ...     mask=np.ones((2, 2)),
        ...     groups=np.array([0, 0]),
        ...     old_logprobs=old,
        ... )
        >>> @jax.jit
        ... @jax.vmap
        ... def loss(objective):
        ...     return objectives.policy_loss(objective, old + np.log(1.5), batch)[0]
        >>> [round(value, 3) for value in loss(objectives.stack(ranges)).tolist()]
        [0.2, 0.15, 0.05]
    """
    # Names do not differ here (`Label`): algorithms that share a structure can be stacked.
    dtype = jnp.result_type(float)
    return jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves]), *objectives
    )
