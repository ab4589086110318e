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
        replay_routes: of a mixture of experts, train every token through the experts that sampled
            it (routing replay, arXiv 2510.11370), which sampling.record_routes stores, and not
            through those that the router chooses now.
        router_balance: factor of the loss that balances the load of the experts (arXiv 2101.03961,
            eq. 4), over each micro-batch.
    """

    steps: Count = 100
    prompts_per_step: Positive = 16
    pack_length: Count = 0
    packs_per_microbatch: Count = 0
    share_prompts: bool = True
    replay_routes: bool = False
    router_balance: NonNegative = 0.0


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

    Examples:
        >>> from grre_jax import config as c
        >>> from grre_jax import objectives
        >>> chosen = c.ObjectiveConfig("rec_oneside_nois", {"epsilon_high": 2.0})
        >>> objectives.algorithm(chosen.name, **chosen.options).hyperparameters
        {'epsilon_low': 0.2, 'epsilon_high': 2.0}
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
class _Resources(Record):
    """Resources of an actor.

    Args:
        cpus: processors of each.
        accelerators: GPUs of each.
        resources (an object of numbers): further resources of each, {"TPU": 4}.
    """

    cpus: NonNegative = 1
    accelerators: NonNegative = 0
    resources: dict[str, Any] = dataclasses.field(default_factory=dict)

    def _validate(self) -> None:
        for name, amount in self.resources.items():
            if type(amount) not in (int, float) or not amount > 0:
                raise ConfigError(f"resources.{name}", "a number above 0", amount)

    @property
    def each(self) -> dict[str, float]:
        """Amounts by the names that Ray has for them."""
        return {"CPU": self.cpus, "GPU": self.accelerators} | self.resources


@dataclasses.dataclass(frozen=True)
class ExplorersConfig(_Resources):
    """Explorers, which sample for the learner.

    Args:
        least: number that the cluster must have room for at the start.
        most: number that sample if there is room; those without room wait for a node. 0 for none:
            the learner samples by itself.
        cpus: processors of each.
        accelerators: GPUs of each.
        resources (an object of numbers): further resources of each, {"TPU": 4}.
    """

    least: Count = 1
    most: Count = 1

    def _validate(self) -> None:
        super()._validate()
        if 0 < self.most < self.least:
            raise ConfigError("most", f"0, or at least {self.least}, as least", self.most)


@dataclasses.dataclass(frozen=True)
class LearnerConfig(_Resources):
    """Processes of a learner that Ray starts, and restarts from its last checkpoint.

    Args:
        hosts: number of processes, each on its own host if the cluster has as many; 0 for the
            process that is started. With a topology their number follows from it.
        cpus: processors of each.
        accelerators: GPUs of each.
        resources (an object of numbers): further resources of each.
        topology: of a TPU slice, 4x4.
        accelerator_type: of the nodes, as Ray names it, TPU-V6E.
        slices: number of TPU slices.
        restarts: how often Ray restarts the processes after one of them was lost.
    """

    hosts: Count = 0
    topology: str = ""
    accelerator_type: str = ""
    slices: Positive = 1
    restarts: Count = 10

    def _validate(self) -> None:
        super()._validate()
        if bool(self.topology) > bool(self.accelerator_type):
            domain = "a TPU's name, TPU-V6E, beside topology"
            raise ConfigError("accelerator_type", domain, self.accelerator_type)
        if self.topology and not self.hosts:
            raise ConfigError("hosts", "at least 1 beside topology", self.hosts)


@dataclasses.dataclass(frozen=True)
class ClusterConfig(Record):
    """Explorers, judges and learner on a Ray cluster.

    Args:
        address (empty, local, auto or HOST:PORT): of the cluster; empty for none: this process
            does all by itself. local starts one on this machine.
        explorers: sample for the learner.
        learner: its processes, if Ray starts them.
        judges: processors that run verifiers and environments, wherever the cluster has them; 0
            for processes beside each explorer and learner, as task.verify_processes.
    """

    address: str = ""
    explorers: ExplorersConfig = ExplorersConfig()
    learner: LearnerConfig = LearnerConfig()
    judges: Count = 0

    def _validate(self) -> None:
        for name, count in (("learner.hosts", self.learner.hosts), ("judges", self.judges)):
            if count and not self.address:
                raise ConfigError(name, "0 without an address of a cluster", count)

    @property
    def samples(self) -> bool:
        """True if explorers on the cluster sample for the learner."""
        return bool(self.address and self.explorers.most)

    @property
    def placed(self) -> list[tuple[str, int, int, dict[str, float]]]:
        """What is placed on the cluster: kind, least and most number, and resources of each."""
        if not self.address:
            return []
        hosts = self.learner.hosts
        explorers = self.explorers
        kinds = [
            ("learner", hosts, hosts, self.learner.each),
            ("explorer", min(explorers.least, explorers.most), explorers.most, explorers.each),
            ("judge", self.judges, self.judges, {"CPU": 1}),
        ]
        return [kind for kind in kinds if kind[2]]
