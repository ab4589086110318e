"""The models that the benchmarks time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from grre_jax import models
from grre_jax.config import ModelSource
from grre_jax.models import ModelConfig, Transformer
from grre_jax.models.published import published
from grre_jax.tasks import CharTokenizer


def _embedded() -> ModelConfig:
    """What the default `ModelSource` makes of the arithmetic task's tokenizer."""
    fields = (
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
    )
    return ModelConfig(
        vocab_size=CharTokenizer().vocab_size,
        **{name: getattr(ModelSource(), name) for name in fields},
    )


SHAPES = {
    "embedded": _embedded(),
    # 4,000,000 parameters: large enough for products that can come near the peak, small enough for
    # a laptop.
    "4M": ModelConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=704,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
    ),
    # Qwen2.5's.
    "1.5B": published("qwen2.5-1.5b"),
    "0.5B": published("qwen2.5-0.5b"),
    # Its width and heads, small enough for a CPU: to see the benchmark of the accelerator run.
    "1.5B-2-layers": dataclasses.replace(published("qwen2.5-1.5b"), num_layers=2, vocab_size=8192),
    # For the benchmarks' own tests.
    "tiny": ModelConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
    ),
}


def build(name: str, bf16: bool) -> Transformer:
    """A new model of the named shape with float32 parameters; no token ends its completions."""
    return Transformer(
        SHAPES[name], rngs=nnx.Rngs(params=0), compute_dtype=jnp.bfloat16 if bf16 else None
    )


def load(path: Path, bf16: bool) -> Transformer:
    """A checkpoint, with float32 parameters.

    Raises:
        DataError: it is missing, or cannot be read.
    """
    return models.load(path, dtype=jnp.float32, compute_dtype=jnp.bfloat16 if bf16 else None)
