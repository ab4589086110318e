"""Memory of a call of the sampler by arithmetic: completions that fit a device side by side."""

import os

import jax

from grre_jax.models.config import ModelConfig
from grre_jax.sampling.prompt_batch import bucket

# Copies of the float32 logits that a draw holds at once.
LOGIT_COPIES = 4
# Prompts held per completion decoded, times the completions of a prompt: `call.call_shape`.
HELD_PROMPTS = 4
# Completions decoded side by side on a device whose memory is not known.
ROWS_WITHOUT_LIMIT = 256
# Share of a device's memory that is planned with; the rest is for programs and fragmentation.
USABLE = 0.9


def weights_bytes(model: ModelConfig, dtype: str, tensor: int, expert: int = 1) -> float:
    """Bytes on a device of the weights as decoding reads them: whole but along `tensor` and
    `expert`.

    Args:
        model: shape of the model.
        dtype: of the matrices.
        tensor: devices that heads, hidden units and the vocabulary are cut over.
        expert: devices that experts are cut over.
    """
    # Only layers and head are copied for decoding; an embedding of its own stays the model's.
    embedding = 0 if model.tie_embeddings else model.vocab_size * model.hidden_size
    return (model.parameters_on(expert) - embedding) * _size(dtype) / tensor


def token_bytes(model: ModelConfig, cache_dtype: str, tensor: int) -> float:
    """Bytes on a device of the keys and values of one token."""
    # Heads that the axis does not divide stay whole (`parallel.mesh.spec`).
    cut = tensor if model.num_kv_heads % tensor == 0 else 1
    heads = model.num_kv_heads / cut
    return 2 * model.num_layers * heads * model.head_dim * _size(cache_dtype)


def row_bytes(
    model: ModelConfig,
    *,
    samples: int,
    prompt_tokens: int,
    max_new_tokens: int,
    cache_dtype: str,
    tensor: int,
) -> float:
    """Bytes on a device of one completion at its limit: its cache, its part of its prompts' and its
    logits.
    """
    held = HELD_PROMPTS / samples if samples > 1 else 1.25  # `call_shape` adds a quarter
    columns = bucket(max_new_tokens) + held * prompt_tokens
    logits = LOGIT_COPIES * 4 * model.vocab_size / tensor
    return token_bytes(model, cache_dtype, tensor) * columns + logits


def fitting_rows(free: float, row: float, samples: int) -> int:
    """Returns the completions that fit, a multiple of `samples` where that many fit; at least 1."""
    rows = max(int(free / row), 1)
    return rows // samples * samples or rows


def device_bytes() -> int | None:
    """Returns the memory of this process's smallest device that JAX may use; of a CPU half of the
    machine's, divided among its devices. None if not known.
    """
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return machine // 2 // len(devices)
    stats = [device.memory_stats() or {} for device in devices]
    return min((found.get("bytes_limit", 0) for found in stats), default=0) or None


def _size(dtype: str) -> int:
    return jax.numpy.dtype(dtype).itemsize
