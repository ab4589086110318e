"""The shape of a decoder-only transformer of the Llama / Qwen family, as plain numbers."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes a model's parameters and forward pass; hashable, so that it can be a static argument.

    Args:
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the SwiGLU.
        num_layers: transformer blocks.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides num_heads (grouped-query attention).
        head_dim: width of one head; even.
        rope_theta: base of the rotary frequencies.
        rms_norm_eps: added to the mean square in RMSNorm.
        tie_embeddings: the head is the embedding.
        qkv_bias: biases on the query, key and value projections (Qwen2).
        attention_out_bias: a bias on the attention's output projection (Llama's `attention_bias`).
        qk_norm: RMSNorm on each head of the queries and keys (Qwen3).
        max_positions: the longest sequence the model was made for, in tokens.
        family: "llama", "qwen2" or "qwen3"; it only names the architecture when the model is written out.
        eos_ids: token ids that end a completion, as the checkpoint declares them.

    Raises:
        ValueError: at construction, naming the field, if the numbers do not fit together.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = True
    qkv_bias: bool = False
    attention_out_bias: bool = False
    qk_norm: bool = False
    max_positions: int = 2048
    family: str = "llama"
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self):
        for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")

    @property
    def num_parameters(self) -> int:
        """Parameters of the model, the tied head counted once."""
        d, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = 2 * d + d * (q + 2 * kv) + q * d + 3 * d * self.intermediate_size
        layer += (q + 2 * kv) * self.qkv_bias + d * self.attention_out_bias + 2 * self.head_dim * self.qk_norm
        return self.vocab_size * d * (1 if self.tie_embeddings else 2) + self.num_layers * layer + d

    def flops_per_token(self, context: float) -> float:
        """Multiply-adds x 2 of one token's forward pass, head included, attending to `context` tokens; a training step costs three times this."""
        d, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = d * (q + 2 * kv) + q * d + 3 * d * self.intermediate_size
        return 2.0 * (self.num_layers * (layer + 2 * q * context) + self.vocab_size * d)
