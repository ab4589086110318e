"""Low-rank adaptation (LoRA, arXiv 2106.09685).

A projection's weight W [in, out] is frozen and used as W + alpha / rank * A @ B; only A [in, rank]
and B [rank, out] are trained. Training never forms A @ B: its gradient would cost as much as W's.
"""

import dataclasses
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grre_jax.domains import AboveZero, ConfigError, Positive, Record
from grre_jax.models.config import ModelConfig
from grre_jax.models.products import product

# Projections that may have a low-rank term, by the names that checkpoints and PEFT's
# `target_modules` give them.
Target = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TARGETS: tuple[Target, ...] = get_args(Target)


@dataclasses.dataclass(frozen=True)
class LoraConfig(Record):
    """Size and projections of low-rank terms; hashable, so that it can be a static argument.

    Args:
        rank: columns of A and rows of B.
        alpha: the term is multiplied by alpha / rank.
        targets: names of projections, a subset of `TARGETS`; kept in that order.

    Raises:
        ConfigError: a field is outside its domain.

    Examples:
        A model with low-rank terms of two projections:

        >>> from grre_jax import models
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=(15,),
        ... )
        >>> lora = models.LoraConfig(rank=2, targets=("q_proj", "v_proj"))
        >>> arrays = models.parameters(models.init(config, lora=lora))
        >>> {name: array.shape for name, array in arrays.items() if name.endswith("lora_a")}
        {'layers.q_lora_a': (1, 8, 2), 'layers.v_lora_a': (1, 8, 2)}
    """

    rank: Positive
    alpha: AboveZero = 16.0
    targets: tuple[Target, ...] = TARGETS

    def _validate(self) -> None:
        if not self.targets:
            raise ConfigError("targets", "at least one projection", self.targets)
        object.__setattr__(self, "targets", tuple(name for name in TARGETS if name in self.targets))

    @property
    def scale(self) -> float:
        """Factor of A @ B."""
        return self.alpha / self.rank


def sizes(config: ModelConfig, projection: str) -> tuple[int, int]:
    """Returns the (in, out) features of a projection ("q", "gate", ...)."""
    d = config.hidden_size
    f = config.intermediate_size
    q = config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    shapes = {"q": (d, q), "k": (d, kv), "v": (d, kv), "o": (q, d)}
    return (shapes | {"gate": (d, f), "up": (d, f), "down": (f, d)})[projection]


def parameter_names(config: ModelConfig, lora: LoraConfig) -> list[str]:
    """Returns the names of all A and B of a block: q_lora_a, q_lora_b, ... Those of experts begin
    with "expert_".
    """
    names = (target.removesuffix("_proj") for target in lora.targets)
    if config.num_experts:
        names = (f"expert_{name}" if name in ("gate", "up", "down") else name for name in names)
    return [f"{name}_lora_{half}" for name in names for half in "ab"]


def is_lora(name: str) -> bool:
    """True if a parameter of that name is an A or a B."""
    return name.endswith(("_lora_a", "_lora_b"))


def initial(config: ModelConfig, lora: LoraConfig, rngs: Any, dtype: Any) -> dict[str, Array]:
    """Draws new low-rank terms: A uniform within 1 / sqrt(in) as in PEFT, B zero.

    They are the optimiser's master weights and small, so they are at least float32.

    Args:
        config: the shape of the model.
        lora: rank and projections.
        rngs: source of the draws of A.
        dtype: of the base's parameters.

    Returns:
        [layers, in, rank] and [layers, rank, out] by `parameter_names`; of experts
        [layers, experts, ...].
    """
    dtype = jnp.promote_types(dtype, jnp.float32)
    values = {}
    for name in parameter_names(config, lora):
        *kind, projection, _, half = name.split("_")
        fan_in, fan_out = sizes(config, projection)
        lead = (config.num_layers, *((config.num_experts,) if kind else ()))
        if half == "a":
            bound = fan_in**-0.5
            shape = (*lead, fan_in, lora.rank)
            values[name] = jax.random.uniform(rngs.params(), shape, dtype, -bound, bound)
        else:
            values[name] = jnp.zeros((*lead, lora.rank, fan_out), dtype)
    return values


Factors = tuple[Float[Array, "in rank"], Float[Array, "rank out"]]


def terms(
    lora: LoraConfig, h: Float[Array, "n in"], factors: dict[str, Factors]
) -> dict[str, Float[Array, "n out"]]:
    """Returns the scaled low-rank terms of projections with a common input, by one product with A.

    Args:
        lora: the scale.
        h: [n, in] the common input.
        factors: A and B by projection.
    """
    if not factors:
        return {}
    inner = _inner(lora, h, [a for a, _ in factors.values()])
    parts = zip(jnp.split(inner, len(factors), axis=1), factors.items(), strict=True)
    return {name: product(part, b) for part, (name, (_, b)) in parts}


def joined_term(
    lora: LoraConfig,
    h: Float[Array, "n in"],
    factors: dict[str, Factors],
    outputs: dict[str, int],
    join: Any,
) -> Array:
    """Returns the scaled low-rank terms of the parts of a fused product, as one product too.

    Args:
        lora: the scale.
        h: [n, in] the common input.
        factors: A and B of the parts that have a term.
        outputs: features of every part of the fused product, in order.
        join: lays out the features of the parts as the fused product does.
    """
    inner = _inner(lora, h, [a for a, _ in factors.values()])
    parts = []
    for name, size in outputs.items():
        # The rows of the other parts are zero. That triples a small product, and saves a
        # concatenation of large ones.
        rows = [
            b if other == name else jnp.zeros((b.shape[0], size), b.dtype)
            for other, (_, b) in factors.items()
        ]
        parts.append(jnp.concatenate(rows, axis=0))
    return product(inner, join(*parts))


def _inner(lora: LoraConfig, h: Array, matrices: list[Array]) -> Array:
    return product(h, jnp.concatenate(matrices, axis=1)) * jnp.asarray(lora.scale, h.dtype)
