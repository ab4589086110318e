"""An objective: static parts, and hyperparameters that are leaves of a pytree.

The parts (advantage, importance weight, gradient mask, penalties, aggregation, ...) decide what is
compiled. Every hyperparameter (an epsilon, a temperature, a coefficient) is a leaf, so that one
compiled step serves any value and `jax.vmap` over a stacked objective sweeps them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grre_jax.objectives import part as kinds
from grre_jax.objectives.part import RATIO, Part


def _static(**options):
    return field(**options, metadata={"static": True})


@dataclass(frozen=True, eq=False)
class Label:
    """A name that is not part of a structure: all labels are equal, so that algorithms that
    differ in hyperparameters alone share a compilation.
    """

    text: str

    def __eq__(self, other) -> bool:
        return isinstance(other, Label)

    def __hash__(self) -> int:
        return hash(Label)


@jax.tree_util.register_dataclass
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
        term: the policy-gradient term.
        level: over what log-ratios are taken.
        ratio_reference: the policy that they are taken to.
        weight: the importance weight W.
        mask: the gradient mask M.
        correction: for the mismatch of the proximal and the sampling policy, or None.
        filter: of whole responses, or None.
        penalties: additive regularisers.
        aggregation: the divisor of the terms.
        denominator: "all", or "kept" to leave dropped responses out of the aggregation's counts.
        singleton_baseline: baseline of a response that is alone in its group: "mean", its own
            reward, or "none", 0.
        components: the components of the reward that the advantage reads, by name; empty for all
            that are given.
        hyperparameters: the leaves: Python floats or scalar arrays (a leading axis is for
            `jax.vmap` to remove).
    """

    label: Label = _static(default=Label(""))
    advantage: kinds.Advantage = _static()
    shaping: tuple[kinds.Shaping, ...] = _static(default=())
    returns: kinds.Returns | None = _static(default=None)
    term: kinds.Term = _static()
    level: kinds.Level = _static()
    ratio_reference: kinds.RatioReference = _static()
    weight: kinds.Weight = _static()
    mask: kinds.Mask = _static()
    correction: kinds.Correction | None = _static(default=None)
    filter: kinds.Filter | None = _static(default=None)
    penalties: tuple[kinds.Penalty, ...] = _static(default=())
    aggregation: kinds.Aggregation = _static()
    denominator: str = _static(default="all")
    singleton_baseline: str = _static(default="mean")
    components: tuple[str, ...] = _static(default=())
    hyperparameters: Mapping[str, float | Float[Array, "..."]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The algorithm's name, for messages and tables."""
        return self.label.text

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts whose hyperparameters, data and statistics the objective needs."""
        chosen = (self.level, self.weight, self.mask, self.term, self.correction, self.filter)
        of_rewards = (self.advantage, *self.shaping, self.returns)
        several = (*of_rewards, *chosen, self.aggregation, *self.penalties)
        parts = tuple(part for part in several if part is not None)
        takes_ratio = any(RATIO in part.data for part in parts)
        return (*parts, self.ratio_reference) if takes_ratio else parts

    def reads(self, part: Part) -> frozenset[str]:
        """The optional data of a `Batch` that a part reads in this objective."""
        if RATIO not in part.data:
            return frozenset(part.data)
        return frozenset({*part.data} - {RATIO} | {*self.ratio_reference.data})

    @property
    def requires(self) -> frozenset[str]:
        """The optional data of a `Batch` that the loss needs, e.g. {"old_logprobs", "expert"}."""
        return frozenset().union(*map(self.reads, self.parts))

    @property
    def gathers(self) -> tuple[kinds.Statistic, ...]:
        """The statistics of the whole batch that it decides by."""
        return tuple(dict.fromkeys(each for part in self.parts for each in part.gathers))

    @property
    def needs_key(self) -> bool:
        """True if `shape_data` draws at random, and so needs a `key`."""
        return self.advantage.random

    @property
    def needs_components(self) -> bool:
        """True if `shape_data` needs the components of the reward."""
        return self.advantage.of_components

    @property
    def needs_policy_stats(self) -> bool:
        """True if `batch_stats` needs the policy's log-probs of the whole batch, not only its
        counts.
        """
        return any(statistic.of_policy for statistic in self.gathers)

    @property
    def takes_ratio(self) -> bool:
        """True if the loss depends on a policy ratio (per token, response or group)."""
        return self.ratio_reference in self.parts

    def check(self) -> None:
        """Checks that every hyperparameter of the parts has a value, and each value is a scalar.

        Raises:
            ValueError: naming the hyperparameter.
        """
        for part in self.parts:
            for declared in part.hyperparameters:
                if declared.name not in self.hyperparameters:
                    raise ValueError(
                        f"{self.name}: {declared.name} of the part {part.name} has no value: make"
                        " the objective with algorithm(...), or replace hyperparameters too"
                    )
        for name, value in self.hyperparameters.items():
            if jnp.ndim(value) != 0:
                raise ValueError(
                    f"{name} has shape {jnp.shape(value)}: sweep a stacked objective with jax.vmap"
                )


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
        ValueError: if the sequence is empty, or two objectives differ in structure.
    """
    if not objectives:
        raise ValueError("stack needs at least one objective")
    structures = [jax.tree.structure(objective) for objective in objectives]
    for objective, structure in zip(objectives, structures, strict=True):
        if structure != structures[0]:
            raise ValueError(
                f"only objectives that differ in hyperparameters alone can be stacked, but"
                f" {objective.name} and {objectives[0].name} differ in structure or in which"
                " hyperparameters they have"
            )
    dtype = jnp.result_type(float)
    return jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves]), *objectives
    )
