"""The section `model` of a run's configuration."""

import dataclasses
from typing import Any, Literal

from grre_jax.domains import AboveZero, ConfigError, Count, Positive, Record
from grre_jax.models.lora import TARGETS, LoraConfig, Target


@dataclasses.dataclass(frozen=True)
class ModelSource(Record):
    """Source of the policy: a checkpoint folder, or random weights of a given size.

    Args:
        path (a path or empty): a Hugging Face folder; empty for a new model with a character
            tokenizer.
        shape (a path or empty): a folder with the config.json whose sizes `grre compile` uses while
            `path` does not exist, such as "configs/shapes/qwen2.5-7b".
        hidden_size: width of a new model.
        intermediate_size: width of the feed-forward layers of a new model.
        num_layers: number of layers of a new model.
        num_heads: number of query heads of a new model.
        num_kv_heads: number of key-value heads of a new model; it must divide num_heads.
        head_dim: width of a head of a new model; it must be even.
        num_experts: experts of each layer of a new model, each with feed-forward layers of its own
            (a mixture of experts); 0 for none.
        experts_per_token: experts that a token takes in a new model.
        dtype: data type of the parameters.
        compute_dtype: data type of the activations; that of the parameters if empty.
        remat: what the backward pass computes again instead of keeping it, from fast to small in
            memory; "full" costs a third more arithmetic.
        system_prompt (any text, or none): system message before every chat prompt; the chat
            template's own if None.
        tools: what declares the functions that an environment offers: the chat template, or a
            system message for templates that leave them out.
        template_arguments (a JSON object): variables of the chat template in every rendering, such
            as {"enable_thinking": false} of Qwen3.
        lora_rank: train low-rank terms (LoRA) of this rank in place of the weights; 0 trains the
            weights.
        lora_alpha: scale of the LoRA terms, which are multiplied by lora_alpha / lora_rank.
        lora_targets (one or more of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj):
            projections that get a LoRA term.
        adapter (a path or empty): a folder of LoRA weights, as `grre export --adapter` or PEFT
            writes it, to train on from; it sets rank, alpha and targets.
    """

    path: str = ""
    shape: str = ""
    hidden_size: Positive = 64
    intermediate_size: Positive = 192
    num_layers: Positive = 2
    num_heads: Positive = 4
    num_kv_heads: Positive = 4
    head_dim: Positive = 16
    num_experts: Count = 0
    experts_per_token: Positive = 1
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    compute_dtype: Literal["float32", "bfloat16", "float16", ""] = ""
    remat: Literal["none", "projections", "attention", "attended", "full"] = "none"
    system_prompt: str | None = None
    tools: Literal["template", "system"] = "template"
    template_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    lora_rank: Count = 0
    lora_alpha: AboveZero = 16.0
    lora_targets: tuple[Target, ...] = TARGETS
    adapter: str = ""

    def _validate(self) -> None:
        if not self.lora_targets:
            raise ConfigError("lora_targets", "at least one projection", self.lora_targets)

    @property
    def lora(self) -> LoraConfig | None:
        """Configuration of the low-rank terms; None if lora_rank is 0."""
        if not self.lora_rank:
            return None
        return LoraConfig(self.lora_rank, self.lora_alpha, self.lora_targets)
