"""The section `model` of a run's configuration."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from grre_jax.domains import at_least, one_of
from grre_jax.models.lora import TARGETS, LoraConfig
from grre_jax.models.transformer import REMAT


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """Source of the policy: a checkpoint folder, or random weights of a given size.

    Args:
        path (a path or empty): a Hugging Face folder; empty for a new model with a
            character tokenizer.
        shape (a published model's name or empty): model whose sizes `grre compile` uses while
            `path` holds no weights yet, such as "qwen2.5-7b".
        hidden_size (at least 1): width of a new model.
        intermediate_size (at least 1): width of the feed-forward layers of a new model.
        num_layers (at least 1): number of layers of a new model.
        num_heads (at least 1): number of query heads of a new model.
        num_kv_heads (at least 1): number of key-value heads of a new model; it must divide
            num_heads.
        head_dim (at least 1): width of a head of a new model; it must be even.
        dtype ("float32", "bfloat16" or "float16"): data type of the parameters.
        compute_dtype ("float32", "bfloat16", "float16" or empty): data type of the activations;
            that of the parameters if empty.
        remat ("none", "projections", "attention", "attended" or "full"): what the backward pass
            computes again instead of keeping it, from fast to small in memory; "full" costs a third
            more arithmetic.
        system_prompt (any text, or none): system message before every chat prompt; the chat
            template's own if None.
        tools ("template" or "system"): what declares the functions that an environment offers: the
            chat template, or a system message for templates that leave them out.
        template_arguments (a JSON object): variables of the chat template in every rendering, such
            as {"enable_thinking": false} of Qwen3.
        template_date (YYYY-MM-DD or empty): date that chat templates with strftime_now write; if
            empty, a run stores the day on which it begins here and keeps it.
        lora_rank (at least 0): train low-rank terms (LoRA) of this rank in place of the weights; 0
            trains the weights.
        lora_alpha (above 0): scale of the LoRA terms, which are multiplied by lora_alpha /
            lora_rank.
        lora_targets (one or more of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj):
            projections that get a LoRA term.
        adapter (a path or empty): a folder of LoRA weights, as `grre export --adapter` or PEFT
            writes it, to train on from; it sets rank, alpha and targets. Its embedding and head
            (modules_to_save), if any, replace the model's and are frozen.
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
    tools: str = "template"
    template_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    template_date: str = ""
    lora_rank: int = 0
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = TARGETS
    adapter: str = ""

    def __post_init__(self):
        one_of(self, remat=REMAT, tools=("template", "system"))
        try:
            datetime.datetime.strptime(self.template_date or "2000-01-01", "%Y-%m-%d")
        except ValueError:
            raise ValueError(
                f"template_date: expected YYYY-MM-DD or empty, got {self.template_date!r}"
            ) from None
        at_least(self, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1)
        at_least(self, num_kv_heads=1, head_dim=1, lora_rank=0)
        # Made even if it is not used, to check the names; a list comes from JSON.
        lora = LoraConfig(max(1, self.lora_rank), self.lora_alpha, tuple(self.lora_targets))
        object.__setattr__(self, "lora_targets", lora.targets)

    @property
    def lora(self) -> LoraConfig | None:
        """Configuration of the low-rank terms; None if lora_rank is 0."""
        if not self.lora_rank:
            return None
        return LoraConfig(self.lora_rank, self.lora_alpha, self.lora_targets)
