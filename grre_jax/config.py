"""A run's configuration: typed, frozen, built by a Python file and overridden by dotted names on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import json
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.models.source import ModelSource
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.rollouts import store_path
from grre_jax.rollouts.store_path import StorePath
from grre_jax.tasks.config import TaskConfig
from grre_jax.training.data_config import DataConfig, total_share
from grre_jax.training.objective_config import ObjectiveConfig
from grre_jax.training.regime import Regime
from grre_jax.training.schedule import Schedule
from grre_jax.training.state import OptimizerConfig


def _check_least(section: Any, **least: int) -> None:
    """Raises ValueError naming the first field of a section that is below its least value."""
    for name, value in least.items():
        if not getattr(section, name) >= value:
            raise ValueError(f"{name} must be at least {value}, got {getattr(section, name)}")


def _check_truncation(section: Any) -> None:
    if not 0 < section.top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {section.top_p}")
    if not 0 <= section.min_p <= 1:
        raise ValueError(f"min_p must lie from 0 to 1, got {section.min_p}")


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How completions are drawn for training.

    Args:
        num_samples (at least 1): completions per prompt (K).
        temperature (above 0): temperature of the draws; training computes log-probs at the same one.
        top_k (at least 0): draw from the k likeliest tokens only; 0 for all. Ratios use untruncated
            log-probs in any case.
        top_p (above 0 and at most 1): draw from the likeliest tokens that make up this mass, after
            top_k; 1 for all.
        min_p (from 0 to 1): draw from tokens at least this times as likely as the likeliest, after
            top_p; 0 for all.
        max_prompt_tokens (at least 1): longest prompt; a longer one is an error.
        max_new_tokens (at least 1): longest completion, EOS included.
        prompts_per_call (at least 1): prompts sampled at once; their completions are decoded side
            by side.
        slots (at least 0): largest number of completions decoded side by side; when one ends,
            the next takes its place. 0 for all of a call.
        cache_dtype ("float32", "bfloat16", "int8" or empty): type of the cached keys and values;
            that of the activations if empty.
    """

    num_samples: int = 8
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_prompt_tokens: int = 16
    max_new_tokens: int = 8
    prompts_per_call: int = 16
    slots: int = 0
    cache_dtype: str = ""

    def __post_init__(self):
        _check_least(self, num_samples=1, temperature=0, top_k=0, max_prompt_tokens=1, max_new_tokens=1, prompts_per_call=1, slots=0)
        if self.cache_dtype not in ("", "float32", "bfloat16", "int8"):
            raise ValueError(f"cache_dtype must be float32, bfloat16, int8 or empty, got {self.cache_dtype!r}")
        _check_truncation(self)


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The size of a training step and the number of steps.

    Args:
        steps (at least 0): optimizer updates.
        groups_per_step (at least 1): prompts per update; each has sampling.num_samples completions.
        row_tokens (at least 0): tokens per packed row; 0 for the size of one whole group.
        rows_per_microbatch (at least 0): rows whose gradient is computed at once; 0 for the whole
            step.
        share_prompts: completions of a group that lie in one row share one copy of their prompt,
            which saves work where prompts are long. False gives each its own copy, as TPU's
            attention kernel needs.
    """

    steps: int = 100
    groups_per_step: int = 16
    row_tokens: int = 0
    rows_per_microbatch: int = 0
    share_prompts: bool = True

    def __post_init__(self):
        _check_least(self, steps=0, groups_per_step=1, row_tokens=0, rows_per_microbatch=0)


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Supervised training on the task's demonstrations before reinforcement learning.

    Args:
        steps (at least 0): updates; 0 for none.
        demonstrations (at least 1): number of demonstrations, each of another question; every epoch
            shuffles them anew.
        batch_size (at least 1): demonstrations per update.
        optimizer: the optimizer of the warm start; training has its own.
    """

    steps: int = 0
    demonstrations: int = 16_384
    batch_size: int = 64
    optimizer: OptimizerConfig = dataclasses.field(default_factory=lambda: OptimizerConfig(learning_rate=1e-3, warmup_steps=20))

    def __post_init__(self):
        _check_least(self, steps=0, demonstrations=1, batch_size=1)


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation on held-out questions.

    Args:
        every (at least 0): steps between evaluations; the first and last step are always evaluated.
            0 for those two alone.
        questions (at least 0): held-out questions.
        num_samples (at least 1): completions per question.
        temperature (at least 0): temperature of the evaluation's draws, independent of training's;
            0 is greedy. kl_to_start is reported at temperature 1 without truncation only, because
            its estimate needs draws of the policy itself.
        top_k (at least 0): draw from the k likeliest tokens only; 0 for all.
        top_p (above 0 and at most 1): draw from the likeliest tokens that make up this mass; 1 for
            all.
        min_p (from 0 to 1): draw from tokens at least this times as likely as the likeliest; 0 for
            all.
        ranking_questions ("start:stop" or empty): groups of data.path held out to test, before and
            after training, how often the length-normalised log-prob ranks a correct completion
            above an incorrect one of the same question; empty for none.
        allow_contaminated: allow evaluation on a benchmark split that the training data contains,
            which is refused otherwise.
    """

    every: int = 20
    questions: int = 256
    num_samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    ranking_questions: str = ""
    allow_contaminated: bool = False

    def __post_init__(self):
        _check_least(self, every=0, questions=0, num_samples=1, temperature=0, top_k=0)
        _check_truncation(self)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are saved and which are kept.

    Args:
        every (at least 1): steps between checkpoints; the first and last state are always kept.
        keep (at least 1): newest checkpoints kept. Those that explorers elsewhere still need stay
            in any case.
        best (at least 0): number of checkpoints with the best evaluations that are kept too; every
            evaluation then saves a checkpoint. 0 for none.
        best_metric (a scalar of the evaluation): metric by which the best are chosen: accuracy, or
            reward for tasks whose verifier gives no correctness.
        best_smallest: smaller values of best_metric are better, as for kl_to_start.
        keep_every (at least 0): also keep checkpoints at multiples of this many steps; 0 for none.
        export: when the run ends, write the policy as a Hugging Face folder, RUN/model, as `grre
            export` does for any checkpoint.
    """

    every: int = 50
    keep: int = 2
    best: int = 0
    best_metric: str = "accuracy"
    best_smallest: bool = False
    keep_every: int = 0
    export: bool = False

    def __post_init__(self):
        _check_least(self, every=1, keep=1, best=0, keep_every=0)


@dataclasses.dataclass(frozen=True)
class LoggingConfig:
    """Where metrics go besides metrics.jsonl and the PNG curves.

    Args:
        tensorboard: write TensorBoard event files.
        wandb_project (any text): Weights & Biases project to log to; empty to log to
            none.
    """

    tensorboard: bool = True
    wandb_project: str = ""


@dataclasses.dataclass(frozen=True)
class Config:
    """The name, folder and seed of a run, and its sections.

    Args:
        name (any text): the run's name.
        run_dir (a path or URL): the run's folder, or its URL in an object store (s3://, gs://);
            runs/NAME if empty.
        seed (from 0 to 2^63 - 1): seed of every random draw of the run.
    """

    name: str
    run_dir: str = ""
    seed: int = 0
    model: ModelSource = ModelSource()
    task: TaskConfig = TaskConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    regime: Regime = Regime()
    sampling: SamplingConfig = SamplingConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    mesh: MeshConfig = MeshConfig()

    def __post_init__(self):
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2**63 - 1, got {self.seed}")
        groups, mixed, limit = self.training.groups_per_step, self.mixed_per_step, self.data.max_staleness
        if self.data.mix and (mixed == 0 or (mixed == groups and total_share(self.data.entries) < 1)):
            raise ValueError(
                f"data.mix={self.data.mix} comes to {mixed} of {groups} groups a step: raise training.groups_per_step or change the shares"
            )
        oldest = self.schedule.regime.oldest(self.training.steps) if self.samples else 0
        if 0 <= limit < oldest:
            raise ValueError(f"data.max_staleness={limit}, and by the regime batches get {oldest} updates old: raise it, or change regime")

    @property
    def samples(self) -> bool:
        """Whether the run samples data of its own."""
        return not self.data.path and total_share(self.data.entries) < 1

    @property
    def mixed_per_step(self) -> int:
        """Groups of a step that come from the folders of data.mix."""
        return round(total_share(self.data.entries) * self.training.groups_per_step)

    @property
    def schedule(self) -> Schedule:
        """What each step trains on of the run's own samples.

        Raises:
            ValueError: the regime cannot be kept with so many groups a step.
        """
        return Schedule(self.regime, self.training.groups_per_step - self.mixed_per_step, self.seed, self.data.max_staleness)

    @property
    def folder(self) -> Path | StorePath:
        """The run's folder."""
        return store_path.of(self.run_dir or f"runs/{self.name}")

    def to_json(self) -> str:
        """The whole configuration as indented JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2, default=str) + "\n"


_DEFAULTS = Config(name="default")

# A run may be resumed with other values of these: they do not change the numbers of the steps already done.
RESUMABLE_FIELDS = (
    "run_dir",
    "task.verify_processes",
    "task.verify_timeout",
    "training.steps",
    "evaluation",
    "checkpoint",
    "logging",
    "mesh",
)


def load_file(path: str | Path) -> Config:
    """The configuration that a Python file's `config()` returns.

    Raises:
        UsageError: the file is missing, or has no `config` function that returns a Config.
    """
    path = Path(path)
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else [], n=3)
        raise UsageError(
            f"config file {path} does not exist"
            + (f"; did you mean {path.parent / near[0]}?" if near else ": give the path of a Python file with a config() function")
        )
    spec = importlib.util.spec_from_file_location(f"grre_config_{path.stem}", path)
    if spec is None:
        raise UsageError(f"config file {path} is not a Python file (.py): give the path of one with a config() function")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.config()
    except AttributeError as error:
        raise UsageError(f"config file {path} must define config() -> grre_jax.config.Config ({error})") from error
    except (ValueError, TypeError, SyntaxError, NameError, ImportError) as error:
        raise UsageError(f"config file {path}: {error}") from error
    if not isinstance(config, Config):
        raise UsageError(f"config() of {path} returned {type(config).__name__}, not grre_jax.config.Config")
    return config


def from_dict(values: dict[str, Any]) -> Config:
    """The configuration that `Config.to_json` wrote.

    Raises:
        ValueError, TypeError: values that are no configuration of this version.
    """
    sections = {field.name: type(getattr(_DEFAULTS, field.name)) for field in dataclasses.fields(Config)}

    def build(kind: type, given: Any) -> Any:
        if not dataclasses.is_dataclass(kind):
            return given
        if not isinstance(given, dict):
            raise TypeError(f"{kind.__name__} takes a JSON object, got {given!r}")
        inner = {field.name: type(getattr(kind(), field.name)) for field in dataclasses.fields(kind)}
        return kind(**{name: build(inner.get(name, object), value) for name, value in given.items()})

    if not isinstance(values, dict):
        raise TypeError(f"a configuration is a JSON object, got {values!r}")
    return Config(**{name: build(sections.get(name, object), value) for name, value in values.items()})


def parse_range(text: str, name: str, total: int) -> range:
    """ "start:stop" as a range within `total`; everything if empty.

    Raises:
        UsageError: naming the field, if it is not two whole numbers with 0 <= start < stop.
        DataError: if it selects nothing of the `total`.
    """
    if not text:
        return range(total)
    start, colon, stop = text.partition(":")
    try:
        bounds = int(start or 0), int(stop or total)
    except ValueError:
        bounds = (-1, -1)
    if not colon or not 0 <= bounds[0] < bounds[1]:
        raise UsageError(f"field {name} takes start:stop with 0 <= start < stop, got {text!r}")
    if bounds[0] >= total:
        raise DataError(f"field {name} = {text} selects nothing: the folder holds {total} groups")
    return range(bounds[0], min(bounds[1], total))


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the fields in which two configurations (as dictionaries) differ."""
    names = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if a == b:
            continue
        names += differences(a, b, f"{prefix}{key}.") if isinstance(a, dict) and isinstance(b, dict) else [prefix + key]
    return names
