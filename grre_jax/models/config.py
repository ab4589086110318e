"""The shape of a dense decoder-only transformer, of the families in `checkpoints.families`."""

import dataclasses
from typing import Literal

from grre_jax.domains import AboveZero, ConfigError, Count, NonNegative, Positive, Record


@dataclasses.dataclass(frozen=True)
class RopeScaling(Record):
    """Scaling of rotary frequencies beyond the lengths that a model was first trained on.

    Args:
        kind: "linear" divides every frequency by `factor`; "llama3" and "yarn" (arXiv 2309.00071)
            divide the low ones, keep the high ones, and interpolate in between.
        factor: the divisor.
        low_freq_factor: llama3: waves longer than original_positions / low_freq_factor are low.
        high_freq_factor: llama3: waves shorter than original_positions / high_freq_factor are high.
        original_positions: llama3, yarn: the length that the model was first trained on, in tokens.
        attention_factor: yarn: factor of cosines and sines.
        beta_fast: yarn: pairs that turn this often within original_positions are high.
        beta_slow: yarn: pairs that turn this often within original_positions are low.
        truncate: yarn: round the first and last interpolated pair outwards.

    Raises:
        ConfigError: a field is outside its domain.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: AboveZero
    low_freq_factor: AboveZero = 1.0
    high_freq_factor: AboveZero = 4.0
    original_positions: Positive = 8192
    attention_factor: AboveZero = 1.0
    beta_fast: AboveZero = 32.0
    beta_slow: AboveZero = 1.0
    truncate: bool = True

    def _validate(self) -> None:
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            domain = f"a number above low_freq_factor={self.low_freq_factor}"
            raise ConfigError("high_freq_factor", domain, self.high_freq_factor)


@dataclasses.dataclass(frozen=True)
class ModelConfig(Record):
    """Shape and options of a model; hashable, so that it can be a static argument.

    Args:
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the SwiGLU, or of each expert's.
        num_layers: transformer blocks.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides num_heads (grouped-query attention).
        head_dim: width of one head; even.
        rope_theta: base of the rotary frequencies.
        rms_norm_eps: added to the mean square in RMSNorm.
        tie_embeddings: True if the head is the embedding.
        qkv_bias: biases on the query, key and value projections (Qwen2).
        attention_out_bias: a bias on the attention's output projection (Llama's `attention_bias`).
        qk_norm: RMSNorm on each head of the queries and keys (Qwen3).
        whole_qk_norm: with qk_norm, over all heads at once (OLMo 2).
        rope_scaling: scaling of the rotary frequencies; None for none.
        activation: of the gate: "silu" or "gelu_tanh" (Gemma).
        unit_offset_norms: norms multiply by 1 + scale (Gemma).
        pre_norms: norms before the attention and before the SwiGLU (not OLMo 2, EXAONE 4).
        post_norms: norms after the attention and after the SwiGLU, before their residuals (Gemma
            2, OLMo 2).
        scale_embeddings: embeddings are multiplied by sqrt(hidden_size) (Gemma).
        embedding_multiplier: factor of the embeddings (Granite).
        residual_multiplier: factor of what the attention and the SwiGLU add (Granite).
        query_scale: dot products of queries and keys are divided by sqrt(query_scale); head_dim
            if 0.
        attention_multiplier: factor of these dot products in place of the division (Granite); 0 for
            the division.
        attention_softcap: attention scores x become cap * tanh(x / cap) (Gemma 2); 0 for none.
        logit_divisor: of the logits, before their cap (Granite).
        logit_softcap: logits x become cap * tanh(x / cap); 0 for none.
        sliding_window: positions that a token of a sliding layer attends to, itself included; 0 if
            no layer slides.
        sliding_layers: one flag per layer, True if it slides; empty if none does.
        local_rope_theta: base of the rotary frequencies in sliding layers, which then have no
            scaling; 0 if they are those of the other layers.
        rotary_share: part of a head's entries that is rotated, from the first on (Phi, GLM).
        interleaved_rotary: entries 2i and 2i + 1 are rotated together (GLM), not i and i + half.
        rotated_layers: one flag per layer, True if queries and keys are rotated; empty if they are
            in all (SmolLM3, EXAONE 4).
        num_experts: SwiGLUs of a layer, of which every token takes some (a mixture of experts); 0
            for one that all tokens take.
        experts_per_token: experts that a token takes.
        normalise_experts: the weights of a token's experts sum to 1.
        max_positions: longest sequence that the model was made for, in tokens.
        family: only names the architecture on export, as `checkpoints.families` does.
        eos_ids: ids of the tokens that end a completion.
        bos_id: id of the token that begins a text; None if the checkpoint declares none.

    Raises:
        ConfigError: a field is outside its domain, or two fields contradict each other.

    Examples:
        >>> from grre_jax import models
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=(15,),
        ... )
        >>> config.family, config.tie_embeddings, config.start_id
        ('llama', True, 15)
    """

    vocab_size: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_layers: Positive
    num_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    rope_theta: AboveZero = 10_000.0
    rms_norm_eps: AboveZero = 1e-6
    tie_embeddings: bool = True
    qkv_bias: bool = False
    attention_out_bias: bool = False
    qk_norm: bool = False
    whole_qk_norm: bool = False
    rope_scaling: RopeScaling | None = None
    activation: Literal["silu", "gelu_tanh"] = "silu"
    unit_offset_norms: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    scale_embeddings: bool = False
    embedding_multiplier: AboveZero = 1.0
    residual_multiplier: AboveZero = 1.0
    query_scale: NonNegative = 0.0
    attention_multiplier: NonNegative = 0.0
    attention_softcap: NonNegative = 0.0
    logit_divisor: AboveZero = 1.0
    logit_softcap: NonNegative = 0.0
    sliding_window: Count = 0
    sliding_layers: tuple[bool, ...] = ()
    local_rope_theta: NonNegative = 0.0
    rotary_share: AboveZero = 1.0
    interleaved_rotary: bool = False
    rotated_layers: tuple[bool, ...] = ()
    num_experts: Count = 0
    experts_per_token: Positive = 1
    normalise_experts: bool = True
    max_positions: Positive = 2048
    family: str = "llama"
    eos_ids: tuple[Count, ...] = ()
    bos_id: Count | None = None

    def _validate(self) -> None:
        if self.num_heads % self.num_kv_heads:
            domain = f"a divisor of num_heads={self.num_heads}"
            raise ConfigError("num_kv_heads", domain, self.num_kv_heads)
        if self.head_dim % 2:
            raise ConfigError("head_dim", "an even number", self.head_dim)
        if self.rotary_share > 1 or self.rotary_dim < 2 or self.rotary_dim % 2:
            domain = f"a share that rotates 2, 4, ... of head_dim={self.head_dim} entries"
            raise ConfigError("rotary_share", domain, self.rotary_share)
        for name in ("sliding_layers", "rotated_layers"):
            flags = getattr(self, name)
            if flags and len(flags) != self.num_layers:
                domain = f"one flag for each of num_layers={self.num_layers}"
                raise ConfigError(name, domain, flags)
        if self.experts_per_token > max(1, self.num_experts):
            domain = f"at most num_experts={self.num_experts}"
            raise ConfigError("experts_per_token", domain, self.experts_per_token)
        if any(self.sliding_layers) and not self.sliding_window:
            raise ConfigError("sliding_window", "at least 1 where a layer slides", 0)

    @property
    def attention_scale(self) -> float:
        """Factor of the attention scores."""
        return self.attention_multiplier or (self.query_scale or self.head_dim) ** -0.5

    @property
    def rotary_dim(self) -> int:
        """Entries of a head that are rotated."""
        return int(self.head_dim * self.rotary_share)

    @property
    def start_id(self) -> int | None:
        """Token that an empty prompt begins with: bos_id, else the first of eos_ids (as GPT-2 was
        trained), else None.
        """
        return self.bos_id if self.bos_id is not None else next(iter(self.eos_ids), None)

    def slides(self, layer: int) -> bool:
        """True if the layer attends within the sliding window only."""
        return bool(self.sliding_layers) and self.sliding_layers[layer]

    def rotates(self, layer: int) -> bool:
        """True if the layer rotates queries and keys."""
        return not self.rotated_layers or self.rotated_layers[layer]

    @property
    def num_parameters(self) -> int:
        """Number of parameters; a tied head is counted once."""
        d, qkv, matrices = self._layer(max(1, self.num_experts))
        layer = matrices + 2 * (self.pre_norms + self.post_norms) * d
        heads = self.num_heads + self.num_kv_heads if self.whole_qk_norm else 2
        layer += heads * self.head_dim * self.qk_norm
        layer += qkv * self.qkv_bias + d * self.attention_out_bias
        return self.vocab_size * d * (1 if self.tie_embeddings else 2) + self.num_layers * layer + d

    def parameters_on(self, expert: int) -> float:
        """Returns the number of parameters on a device if experts are cut over `expert` devices."""
        matrices = [self._layer(count)[2] for count in (0, self.num_experts)]
        return self.num_parameters - self.num_layers * (matrices[1] - matrices[0]) * (
            1 - 1 / expert
        )

    def _layer(self, experts: int) -> tuple[int, int, int]:
        """Width, features of queries, keys and values, and parameters of a layer's matrices, of
        this many experts.
        """
        d = self.hidden_size
        q = self.num_heads * self.head_dim
        qkv = q + 2 * self.num_kv_heads * self.head_dim
        return d, qkv, d * (qkv + q + 3 * experts * self.intermediate_size + self.num_experts)
