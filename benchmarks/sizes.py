"""The models that the benchmarks time."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from grre_jax import models
from grre_jax.config import ModelSource
from grre_jax.models import ModelConfig, Transformer
from grre_jax.tasks import CharTokenizer

PUBLISHED = Path(__file__).parents[1] / "configs" / "shapes"
FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
)


def shape(vocab_size: int, *sizes: int, **experts: int) -> ModelConfig:
    """A model of these `FIELDS`, and of experts."""
    return ModelConfig(vocab_size=vocab_size, **dict(zip(FIELDS, sizes, strict=True)), **experts)


def flops_per_token(config: ModelConfig, context: float) -> float:
    """FLOPs of one token's forward pass, head included (a multiply-add is two). A training step
    costs three times this.
    """
    d, _, layer = config._layer(config.experts_per_token)
    attended = 2 * config.num_heads * config.head_dim * context
    return 2.0 * (config.num_layers * (layer + attended) + config.vocab_size * d)


SHAPES = {
    # What the default `ModelSource` makes of the arithmetic task's tokenizer.
    "embedded": shape(
        CharTokenizer().vocab_size, *(getattr(ModelSource(), name) for name in FIELDS)
    ),
    # 4,000,000 parameters: large enough for products that can come near the peak, small enough for
    # a laptop.
    "4M": shape(4096, 256, 704, 4, 4, 2, 64),
    # 16,000,000 parameters, of which a token takes as many.
    "16M-A4M": shape(4096, 256, 352, 4, 4, 2, 64, num_experts=13, experts_per_token=2),
    # Qwen2.5's.
    "1.5B": models.load_config(PUBLISHED / "qwen2.5-1.5b"),
    "0.5B": models.load_config(PUBLISHED / "qwen2.5-0.5b"),
    # For the benchmarks' own tests.
    "tiny": shape(32, 16, 32, 1, 2, 1, 8),
}


def build(source: str | Path, bf16: bool) -> Transformer:
    """A new model of a named shape, none of whose tokens ends a completion, or a checkpoint; with
    float32 parameters.

    Raises:
        DataError: a checkpoint is missing, or cannot be read.
    """
    compute = jnp.bfloat16 if bf16 else None
    if isinstance(source, Path):
        return models.load(source, dtype=jnp.float32, compute_dtype=compute)
    return Transformer(SHAPES[source], rngs=nnx.Rngs(0), compute_dtype=compute)
