"""Where a run's policy comes from, as its configuration says it."""

from __future__ import annotations

import dataclasses

from grre_jax.models.lora import TARGETS, LoraConfig
from grre_jax.models.transformer import REMAT


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """Where the policy comes from: a checkpoint folder, or random weights of the given size.

    Args:
        path: a Hugging Face folder or a GGUF file; empty for a new model with a character tokenizer.
        shape: a published model, such as "qwen2.5-7b", whose size `grre compile` takes where the path holds no weights yet.
        hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim: size of a new model.
        dtype: of the parameters.
        compute_dtype: of the activations; the parameters' if empty.
        remat: what the backward pass computes again instead of keeping it, from fast to small: "none", "projections", "attention", "attended", "full" (a third more
            arithmetic).
        system_prompt: system message put before every chat prompt; the chat template's own if None.
        lora_rank: train low-rank terms (LoRA) of this rank in place of the weights; 0 trains the weights.
        lora_alpha: the terms are multiplied by lora_alpha / lora_rank.
        lora_targets: projections that have a term: of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.
        adapter: a folder of LoRA weights, as `grre export --adapter` or PEFT writes it, to train on from; it says its own rank, alpha and targets.
    """

    path: str = ""
    shape: str = ""
    hidden_size: int = 64
    intermediate_size: int = 192
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 4
    head_dim: int = 16
    dtype: str = "float32"
    compute_dtype: str = ""
    remat: str = "none"
    system_prompt: str | None = None
    lora_rank: int = 0
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = TARGETS
    adapter: str = ""

    def __post_init__(self):
        if self.remat not in REMAT:
            raise ValueError(f"remat must be one of {', '.join(REMAT)}, got {self.remat!r}")
        if self.lora_rank < 0:
            raise ValueError(f"lora_rank must be at least 0, got {self.lora_rank}")
        # Made even where it is not used, so that a wrong name is told; a list comes from JSON.
        lora = LoraConfig(max(1, self.lora_rank), self.lora_alpha, tuple(self.lora_targets))
        object.__setattr__(self, "lora_targets", lora.targets)

    @property
    def lora(self) -> LoraConfig | None:
        """The low-rank terms that the fields ask for; None if lora_rank is 0."""
        return LoraConfig(self.lora_rank, self.lora_alpha, self.lora_targets) if self.lora_rank else None
