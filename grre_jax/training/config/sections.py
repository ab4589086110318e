"""The configuration's `training`, `warm_start`, `objective` and `cluster` sections."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from grre_jax.domains import ConfigError, Count, NonNegative, Positive, Record
from grre_jax.rollouts.schema import STORED_FIELDS
from grre_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Record):
    """The size of a training step and the number of steps.

    Args:
        steps: optimizer updates.
        prompts_per_step: prompts per update; each has sampling.group_size completions.
        pack_length: tokens per packed row; 0 for the size of one whole group.
        packs_per_microbatch: rows whose gradient is computed at once; 0 for the whole step.
        share_prompts: completions of a group that lie in one row share one copy of their prompt,
            which saves work where prompts are long. False gives each its own copy.
    """

    steps: Count = 100
    prompts_per_step: Positive = 16
    pack_length: Count = 0
    packs_per_microbatch: Count = 0
    share_prompts: bool = True


@dataclasses.dataclass(frozen=True)
class WarmStartConfig(Record):
    """Supervised training on the task's demonstrations before reinforcement learning.

    Args:
        steps: updates; 0 for none.
        demonstrations: number of demonstrations, each of another question; every epoch has its own
            order.
        batch_size: demonstrations per update.
        optimizer: the optimizer of the warm start; training has its own.
    """

    steps: Count = 0
    demonstrations: Positive = 16_384
    batch_size: Positive = 64
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-3, warmup_steps=20)
    )

    def _validate(self) -> None:
        if self.steps and self.batch_size > self.demonstrations:
            domain = f"at most the {self.demonstrations} of warm_start.demonstrations"
            raise ConfigError("batch_size", domain, self.batch_size)


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig(Record):
    """The objective that is trained, and where its reference log-probs come from.

    Args:
        name (an algorithm, or FILE.py:FUNCTION): an algorithm of `grre algorithms`, or a loss
            function of your own.
        options (numbers and variants by keyword): options of the algorithm, which `grre algorithms
            NAME` lists: --objective.options.epsilon_low 0.2.
        stored ("reference", "proximal", both or empty): whose log-probs are read from the groups of
            data.path, where `grre rollouts rescore --as` wrote them. Without it the reference is
            the policy that the run started from (after the warm start), and the proximal policy the
            one at the start of each update.
    """

    name: str = "reinforce"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    stored: tuple[Literal["reference", "proximal"], ...] = ()

    def _validate(self) -> None:
        for option, value in self.options.items():
            if callable(value):  # config.json could not name it
                raise ConfigError(f"options.{option}", "a number, a word or FILE.py:NAME", value)

    @property
    def stored_fields(self) -> tuple[str, ...]:
        """The fields of `stored` in rollout groups and batches."""
        return tuple(STORED_FIELDS[role] for role in self.stored)


@dataclasses.dataclass(frozen=True)
class ClusterConfig(Record):
    """Explorers on a Ray cluster, which sample for the learner.

    Args:
        address (empty, local, auto or HOST:PORT): of the cluster; empty for none: the learner
            samples by itself. local starts one on this machine.
        least: explorers that the cluster must have room for at the start.
        most: explorers that sample if there is room; those without room wait for a node.
        cpus: processors of each explorer.
        accelerators: GPUs of each explorer.
        resources (an object of numbers): further resources of each, {"TPU": 4}.
    """

    address: str = ""
    least: Positive = 1
    most: Positive = 1
    cpus: NonNegative = 1
    accelerators: NonNegative = 0
    resources: dict[str, Any] = dataclasses.field(default_factory=dict)

    def _validate(self) -> None:
        if self.most < self.least:
            raise ConfigError("most", f"at least {self.least}, as cluster.least", self.most)
        for name, amount in self.resources.items():
            if type(amount) not in (int, float) or not amount > 0:
                raise ConfigError(f"resources.{name}", "a number above 0", amount)
