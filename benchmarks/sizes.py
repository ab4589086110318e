"""The models that the benchmarks time."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from grre_jax import models
from grre_jax.config import ModelSource
from grre_jax.models import ModelConfig, Transformer
from grre_jax.models.published import published
from grre_jax.tasks import CharTokenizer

FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
)


def shape(vocab_size: int, *sizes: int) -> ModelConfig:
    """A model of these `FIELDS`."""
    return ModelConfig(vocab_size=vocab_size, **dict(zip(FIELDS, sizes, strict=True)))


SHAPES = {
    # What the default `ModelSource` makes of the arithmetic task's tokenizer.
    "embedded": shape(
        CharTokenizer().vocab_size, *(getattr(ModelSource(), name) for name in FIELDS)
    ),
    # 4,000,000 parameters: large enough for products that can come near the peak, small enough for
    # a laptop.
    "4M": shape(4096, 256, 704, 4, 4, 2, 64),
    # Qwen2.5's.
    "1.5B": published("qwen2.5-1.5b"),
    "0.5B": published("qwen2.5-0.5b"),
    # For the benchmarks' own tests.
    "tiny": shape(32, 16, 32, 1, 2, 1, 8),
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
