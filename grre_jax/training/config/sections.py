"""The sections of a configuration that `training` owns."""

import dataclasses
from typing import Annotated, Any, Literal

from grre_jax.domains import AtLeastMinusOne, ConfigError, Count, NonNegative, Positive, Record
from grre_jax.rollouts.schema import STORED_FIELDS
from grre_jax.sampling_params import SamplingParams
from grre_jax.training.data.plan import MAX_ROUNDS
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
        """Processes placed on the cluster: kind, least and most number, and resources of each."""
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


EXPERT = ":expert"


@dataclasses.dataclass(frozen=True)
class MixEntry:
    """One folder of a mix.

    Attributes:
        path: the rollout folder.
        share: of a step's groups, above 0 and up to 1.
        expert: all its completions are treated as an expert's, regardless of its records.
    """

    path: str
    share: float
    expert: bool = False


def parse_mix(text: str) -> tuple[MixEntry, ...]:
    """Parses the entries of "FOLDER=SHARE,FOLDER=SHARE:expert"; an empty text has none.

    A folder's name may contain any character except a comma.

    Raises:
        ConfigError: an entry that cannot be read, a folder named twice, or shares that add to more
            than 1.
    """
    entries: list[MixEntry] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        path, _, share = word.removesuffix(EXPERT).rpartition("=")
        try:
            number = float(share)
        except ValueError:
            number = 0.0
        if not path or not 0 < number <= 1:
            domain = f"FOLDER=SHARE or FOLDER=SHARE{EXPERT} between commas, a share in (0, 1]"
            raise ConfigError("mix", domain, word)
        if path in (entry.path for entry in entries):
            raise ConfigError("mix", f"one share for each folder, not two for {path}", text)
        entries.append(MixEntry(path, number, word.endswith(EXPERT)))
    if total_share(entries) > 1:
        raise ConfigError("mix", "shares that add to at most 1", text)
    return tuple(entries)


def total_share(entries: tuple[MixEntry, ...] | list[MixEntry]) -> float:
    """Returns the sum of the shares; exactly 1 if it differs from 1 by rounding only."""
    total = sum(entry.share for entry in entries)
    return 1.0 if abs(total - 1) < 1e-6 else total


@dataclasses.dataclass(frozen=True)
class DataConfig(Record):
    """Stored rollouts to learn from, instead of what the run samples or beside it.

    Args:
        path (a path or URL): a rollout folder to train on; empty to sample.
        mix ("FOLDER=SHARE,FOLDER=SHARE:expert"): these shares of every step's groups come from
            these rollout folders, the rest from `path` or, where that is empty, from sampling. With
            ":expert" all completions of a folder count as an expert's, whatever its records have.
        drop_zero_variance: leave out stored groups whose rewards are all equal. Under asymre they
            would still imitate; an expert's stay where the objective asks for experts, and
            trajectories where its option returns is "turns".
        drop_over_limit: leave out stored groups over sampling.max_prompt_tokens or
            sampling.max_new_tokens, which are an error otherwise.
        max_staleness: largest age of the data: of stored groups in policy versions before their
            folder's newest, of replayed groups in updates. A regime that samples older data is
            refused. -1 for any age.
        order: order of stored groups: shuffled anew each epoch, or as they were sealed.
        dynamic_sampling: how many other questions are tried where a sampled group has no signal;
            the group is left out if none gives one. 0 trains on groups as sampled.
    """

    path: str = ""
    mix: str = ""
    drop_zero_variance: bool = True
    drop_over_limit: bool = False
    max_staleness: AtLeastMinusOne = -1
    order: Literal["shuffled", "stored"] = "shuffled"
    dynamic_sampling: Annotated[int, f"[0, {MAX_ROUNDS}]"] = 0

    def _validate(self) -> None:
        if total_share(self.entries) == 1 and self.path:
            raise ConfigError("path", "empty, since the shares of mix add to 1", self.path)

    @property
    def entries(self) -> tuple[MixEntry, ...]:
        """The entries of `mix`."""
        return parse_mix(self.mix)


MAX_QUESTIONS = 100_000


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(SamplingParams):
    """Evaluation on held-out questions.

    Args:
        temperature: divides the logits of the evaluation's draws, independent of training's; 0 is
            greedy decoding. kl_to_start is reported at temperature 1 without truncation only,
            because its estimate needs draws of the policy itself.
        max_new_tokens: longest completion, EOS included; 0 for sampling.max_new_tokens.
        every: steps between evaluations; the first and last step are always evaluated. 0 for those
            two alone.
        questions: held-out questions.
        num_samples: sampled completions per question.
        greedy: also answer each question once by greedy decoding, for greedy_accuracy and
            greedy_reward. It costs one completion per question, none at temperature 0.
        allow_contaminated: allow evaluation on a benchmark split that the training data contains,
            which is refused otherwise.
    """

    max_new_tokens: Count = 0
    every: Count = 20
    questions: Annotated[int, f"[0, {MAX_QUESTIONS}]"] = 256
    num_samples: Positive = 1
    greedy: bool = True
    allow_contaminated: bool = False


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Record):
    """The configuration's `checkpoint` section: when checkpoints are saved and which are kept.

    Args:
        every: steps between checkpoints; the first and last state are always kept.
        keep: newest checkpoints kept. Those that explorers elsewhere still need stay in any case.
        best: number of checkpoints with the best evaluations that are kept too; every evaluation
            then saves a checkpoint. 0 for none.
        best_metric (a scalar of the evaluation): metric whose largest values are the best: accuracy
            (of sampled completions), greedy_accuracy, or reward for tasks whose verifier gives no
            correctness.
        keep_every: also keep checkpoints at multiples of this many steps; 0 for none.
        export: when the run ends, write the policy as a Hugging Face folder, RUN/model, as `grre
            export` does for any checkpoint.
    """

    every: Positive = 50
    keep: Positive = 2
    best: Count = 0
    best_metric: str = "accuracy"
    keep_every: Count = 0
    export: bool = False
