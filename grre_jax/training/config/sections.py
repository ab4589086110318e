"""The configuration's `training`, `warm_start` and `objective` sections."""

from __future__ import annotations

import dataclasses
from typing import Any

from grre_jax.domains import at_least, unexpected
from grre_jax.rollouts.schema import STORED_FIELDS
from grre_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The size of a training step and the number of steps.

    Args:
        steps (at least 0): optimizer updates.
        prompts_per_step (at least 1): prompts per update; each has sampling.group_size completions.
        pack_length (at least 0): tokens per packed row; 0 for the size of one whole group.
        packs_per_microbatch (at least 0): rows whose gradient is computed at once; 0 for the whole
            step.
        share_prompts: completions of a group that lie in one row share one copy of their prompt,
            which saves work where prompts are long. False gives each its own copy.
    """

    steps: int = 100
    prompts_per_step: int = 16
    pack_length: int = 0
    packs_per_microbatch: int = 0
    share_prompts: bool = True

    def __post_init__(self):
        at_least(self, steps=0, prompts_per_step=1, pack_length=0, packs_per_microbatch=0)


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Supervised training on the task's demonstrations before reinforcement learning.

    Args:
        steps (at least 0): updates; 0 for none.
        demonstrations (at least 1): number of demonstrations, each of another question; every epoch
            has its own order.
        batch_size (at least 1): demonstrations per update.
        optimizer: the optimizer of the warm start; training has its own.
    """

    steps: int = 0
    demonstrations: int = 16_384
    batch_size: int = 64
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-3, warmup_steps=20)
    )

    def __post_init__(self):
        at_least(self, steps=0, demonstrations=1, batch_size=1)
        if self.steps and self.batch_size > self.demonstrations:
            domain = f"at most the {self.demonstrations} of warm_start.demonstrations"
            raise unexpected("batch_size", domain, self.batch_size)


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """The objective that is trained, and where its reference log-probs come from.

    Args:
        name (an algorithm, or FILE.py:FUNCTION): an algorithm of `grre algorithms`, or a loss
            function of your own.
        options (numbers and variants by keyword): options of the algorithm, which `grre
            algorithms NAME` lists: --objective.options.epsilon_low 0.2.
        stored ("reference", "proximal", both or empty): whose log-probs are read from the groups of
            data.path, where `grre rollouts rescore --as` wrote them. Without it the reference is
            the policy that the run started from (after the warm start), and the proximal policy the
            one at the start of each update.
    """

    name: str = "reinforce"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    stored: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "stored", tuple(self.stored))  # a list from JSON
        for role in self.stored:
            if role not in STORED_FIELDS:
                raise unexpected("stored", f"words among {', '.join(STORED_FIELDS)}", role)
        for option, value in dict(self.options).items():
            if callable(value):  # config.json could not name it
                raise unexpected(f"options.{option}", "a number, a word or FILE.py:NAME", value)

    @property
    def stored_fields(self) -> tuple[str, ...]:
        """The fields of `stored` in rollout groups and batches."""
        return tuple(STORED_FIELDS[role] for role in self.stored)
