"""An objective is data: static structure, and numbers that are leaves of a pytree.

The structure (which advantage, importance weight, gradient mask, penalties and aggregation) decides what is compiled. Every number (an
epsilon, a temperature, a coefficient) is a leaf, so that one compiled step serves any value and `jax.vmap` over a stacked objective
sweeps them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def _static():
    return field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Objective:
    """What to minimise. Made and validated by `algorithm(name, **options)`; the constructor validates nothing, as it runs under jit and
    vmap.

    Attributes:
      name: the algorithm's name.
      advantage: how rewards become advantages, a key of `advantages.ADVANTAGES`.
      weight: the importance weight W, a key of `weights.WEIGHTS`.
      mask: the gradient mask M, a key of `weights.MASKS`.
      penalties: additive regularisers, keys of `regularizers.TOKEN_PENALTIES` or `regularizers.RESPONSE_PENALTIES`.
      aggregation: what the token terms are divided by, a key of `aggregation.AGGREGATIONS`.
      denominator: "all", or "kept" to leave dropped responses out of the aggregation's counts.
      single: the advantage in a group of one: "zero", or "reward" for a baseline of 0.
      numbers: the leaves: Python floats or scalar arrays (a leading axis is for `jax.vmap` to remove).
    """

    name: str = _static()
    advantage: str = _static()
    weight: str = _static()
    mask: str = _static()
    penalties: tuple[str, ...] = _static()
    aggregation: str = _static()
    denominator: str = _static()
    single: str = _static()
    numbers: Mapping[str, float | Float[Array, "..."]]

    @property
    def requires(self) -> frozenset[str]:
        """The optional token data of a `Batch` that the loss cannot do without: a subset of {"old_logprobs", "ref_logprobs"}."""
        needed = set()
        if self.mask != "none" or self.weight == "ratio" or any(not penalty.endswith("_reference") for penalty in self.penalties):
            needed.add("old_logprobs")
        if any(penalty.endswith("_reference") for penalty in self.penalties):
            needed.add("ref_logprobs")
        return frozenset(needed)

    @property
    def needs_key(self) -> bool:
        """Whether `advantages` draws at random, and so needs a `key`."""
        return self.advantage == "red_drop"


def stack(objectives: Sequence[Objective]) -> Objective:
    """Stacks objectives of one structure into one whose numbers have a leading axis, for `jax.vmap`.

    `jax.vmap(lambda objective: policy_loss(objective, logprobs, batch))(stack(objectives))` sweeps them in one compilation.

    Args:
      objectives: at least one objective, equal in everything but their numbers.

    Returns:
      An `Objective` whose numbers are arrays [len(objectives)].

    Raises:
      ValueError: if there is none, or if two of them differ in structure.
    """
    if not objectives:
        raise ValueError("stack needs at least one objective")
    structures = [jax.tree.structure(objective) for objective in objectives]
    for objective, structure in zip(objectives, structures, strict=True):
        if structure != structures[0]:
            raise ValueError(
                f"only objectives that differ in numbers alone can be stacked, but {objective.name} and {objectives[0].name} "
                "differ in structure or in which numbers they have"
            )
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves]), *objectives)
