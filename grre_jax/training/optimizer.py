"""The configuration's `optimizer` section, and the Optax transformation that it describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array

from grre_jax.domains import ConfigError, Count, NonNegative, Record

# Muon's updates have this root mean square for matrices of any shape, as AdamW's nearly have, so
# that learning rates carry over (arXiv 2502.16982).
MUON_RMS = 0.2


def _muon(config: OptimizerConfig, rate: optax.Schedule, decay: dict) -> Any:
    """Returns Muon for the matrices of layers, each by itself, and NAdamW for all else."""

    def matrices(params):
        each = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
        return jax.tree_util.tree_map_with_path(
            lambda path, _: each if str(path[-1].key).endswith("_proj") else None, params
        )

    # The rate -1 leaves the direction as it is. Decay and rate follow, since Optax's Muon has no
    # mask for the decay of what it leaves to Adam.
    direction = optax.contrib.muon(
        -1.0,
        beta=config.b1,
        eps=config.eps,
        adam_b1=config.b1,
        adam_b2=config.b2,
        muon_weight_dimension_numbers=matrices,
        consistent_rms=MUON_RMS,
    )
    decayed = optax.add_decayed_weights(**decay)
    return optax.chain(direction, decayed, optax.scale_by_learning_rate(rate))


def _sgd(config: OptimizerConfig, rate: optax.Schedule, decay: dict) -> Any:
    # With the state that stored checkpoints have: the decay is 0.
    plain = optax.sgd(rate, momentum=config.b1 or None)
    return optax.chain(optax.add_decayed_weights(**decay), plain)


def _adafactor(config: OptimizerConfig, rate: optax.Schedule, _: dict) -> Any:
    return optax.adafactor(
        rate,
        multiply_by_parameter_scale=False,
        clipping_threshold=None,
        decay_rate=config.b2,
    )


# By Optax's name; arguments: configuration, schedule, weight decay and the mask of its matrices.
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adamw": lambda c, rate, decay: optax.adamw(rate, c.b1, c.b2, c.eps, **decay),
    "nadamw": lambda c, rate, decay: optax.nadamw(rate, c.b1, c.b2, c.eps, **decay),
    "muon": _muon,
    "lion": lambda c, rate, decay: optax.lion(rate, c.b1, c.b2, **decay),
    "sgd": _sgd,
    "adafactor": _adafactor,
}
DECAYS: dict[str, Callable[[Array], Array]] = {
    "none": jnp.ones_like,
    "linear": lambda fraction: 1 - fraction,
    "cosine": lambda fraction: 0.5 * (1 + jnp.cos(jnp.pi * fraction)),
}


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Record):
    """An Optax optimizer with a clipped gradient norm, linear warm-up and an optional decay of
    the learning rate.

    Args:
        name: the optimizer of Optax. "sgd" has momentum b1; "adafactor" keeps factored second
            moments, which are small, with decay rate b2; "muon" (arXiv 2502.16982) orthogonalises
            the momentum, of decay rate b1, of each matrix of a layer (queries, keys and values are
            one), and is "nadamw" for embedding, head, norms, biases and LoRA.
        learning_rate: learning rate at the end of the warm-up.
        warmup_steps: steps over which the learning rate rises from 0; the first step already moves.
        decay: how the learning rate falls after the warm-up.
        decay_steps: the step at which the decay ends, counted from the start of training; with a
            decay it must be above warmup_steps, and at least the run's steps unless final_fraction
            is above 0.
        final_fraction: learning rate after the decay, as a fraction of learning_rate.
        clip_norm: largest global gradient norm; 0 turns the clip off.
        b1: decay rate of the first moment; momentum of "sgd"; "adafactor" has none.
        b2: decay rate of the second moment; "sgd" has none.
        eps: term added to the denominator of the update of "adamw", "nadamw" and "muon"; the
            others have none.
        weight_decay: decoupled weight decay, on matrices only; 0 for "sgd" and "adafactor".
        ess_exponent: power of min(1, effective_sample_size_responses / ess_base) by which every
            update is multiplied, as VCPO scales its learning rate
            (https://arxiv.org/abs/2602.17616; https://github.com/mit-han-lab/vcpo has 0.5, or 1); 0
            turns it off. Not in the metric learning_rate, and 1 without stored log-probs.
        ess_base: the effective sample size, as a share of the responses, from which updates are
            whole ones.

    Raises:
        ValueError: at construction, naming the field and its domain.
    """

    name: Literal["adamw", "nadamw", "muon", "lion", "sgd", "adafactor"] = "adamw"
    learning_rate: NonNegative = 1e-6
    warmup_steps: Count = 0
    decay: Literal["none", "linear", "cosine"] = "none"
    decay_steps: Count = 0
    final_fraction: NonNegative = 0.0
    clip_norm: NonNegative = 1.0
    b1: Annotated[float, "[0, 1)"] = 0.9
    b2: Annotated[float, "[0, 1)"] = 0.999
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.0
    ess_exponent: NonNegative = 0.0
    ess_base: Annotated[float, "(0, 1]"] = 1.0

    def _validate(self) -> None:
        if self.decay != "none" and self.decay_steps <= self.warmup_steps:
            above = f"more than warmup_steps={self.warmup_steps} for decay={self.decay}"
            raise ConfigError("decay_steps", f"{above} (the run's steps)", self.decay_steps)

    def schedule(self) -> optax.Schedule:
        """Returns the learning rate by update count."""
        if self.warmup_steps == 0 and self.decay == "none":
            return optax.constant_schedule(self.learning_rate)

        def rate(count):
            rise = jnp.minimum((count + 1) / max(self.warmup_steps, 1), 1.0)
            falling = max(self.decay_steps - self.warmup_steps, 1)
            fraction = jnp.clip((count - self.warmup_steps) / falling, 0.0, 1.0)
            factor = self.final_fraction + (1 - self.final_fraction) * DECAYS[self.decay](fraction)
            return self.learning_rate * rise * (factor if self.decay != "none" else 1.0)

        return rate


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns the Optax chain of the config.

    Raises:
        ConfigError: weight decay of an optimizer that has none.
    """
    if config.weight_decay and config.name in ("sgd", "adafactor"):
        raise ConfigError("optimizer.weight_decay", f"0 for {config.name}", config.weight_decay)

    def matrices(params):
        # Stacked layers have one more axis, so that a norm's scale is [layers, width]: projections
        # and embeddings are recognized by their names.
        decaying = ("_proj", "embed", "head", "_lora_a", "_lora_b")
        return jax.tree_util.tree_map_with_path(
            lambda path, _: str(path[-1].key).endswith(decaying), params
        )

    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    decay = {"weight_decay": config.weight_decay, "mask": matrices}
    scale = [_scaled_by_sample_size(config)] if config.ess_exponent else []
    return optax.chain(*clip, OPTIMIZERS[config.name](config, config.schedule(), decay), *scale)


def _scaled_by_sample_size(config: OptimizerConfig) -> optax.GradientTransformation:
    """Multiplies updates as `OptimizerConfig` defines it; by 1 if `update` is given no
    `effective_sample_size`.
    """

    def update(updates, state, params=None, *, effective_sample_size=1.0, **_):
        share = jnp.minimum(effective_sample_size / config.ess_base, 1)
        return optax.tree.scale(share**config.ess_exponent, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
