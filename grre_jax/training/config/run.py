"""The configuration of a run: typed and frozen, built by a Python file and overridden by dotted
names on the command line.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from grre_jax.domains import between
from grre_jax.errors import UsageError
from grre_jax.models.source import ModelSource
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.reporting.config import LoggingConfig
from grre_jax.sampling.config import SamplingConfig
from grre_jax.storage import remote
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.task import nearest
from grre_jax.training.checkpoints.config import CheckpointConfig
from grre_jax.training.config.sections import ObjectiveConfig, TrainingConfig, WarmStartConfig
from grre_jax.training.data.config import DataConfig, total_share
from grre_jax.training.data.regime import Regime
from grre_jax.training.data.schedule import Schedule
from grre_jax.training.evaluation.config import EvaluationConfig
from grre_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class Config:
    """The name, folder and seed of a run, and its sections.

    Args:
        name (any text): the run's name.
        run_dir (a path or URL): the run's folder, or its URL in an object store (s3://, gs://);
            runs/NAME if empty.
        seed (from 0 to 2^63 - 1): seed of every random draw of the run.
        start_from (RUN or RUN:STEP, or empty): folder of another run, whose policy at a step (the
            last that it keeps, if none is given) this run starts from at its own step 0, with the
            optimizer's moments if its state has the same structure. The warm start is left out.
        compiled (a path, none or empty): folder for compiled programs, which later commands load;
            grre_jax/compiled in the user's cache folder if empty; none keeps none.
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
    start_from: str = ""
    compiled: str = ""

    def __post_init__(self):
        between(self, seed=f"[0, {2**63 - 1}]")
        groups, mixed = self.training.prompts_per_step, self.mixed_per_step
        whole, limit = total_share(self.data.entries) == 1, self.data.max_staleness
        if self.data.mix and (mixed == 0 or (mixed == groups and not whole)):
            raise ValueError(
                f"data.mix={self.data.mix} comes to {mixed} of {groups} groups per step: raise"
                " training.prompts_per_step or change the shares"
            )
        oldest = self.schedule.regime.oldest(self.training.steps) if self.samples else 0
        if 0 <= limit < oldest:
            raise ValueError(
                f"data.max_staleness={limit} is below the age of {oldest} updates that batches of"
                " the regime reach: raise it, or change regime"
            )

    @property
    def samples(self) -> bool:
        """True if the run samples data of its own."""
        return not self.data.path and total_share(self.data.entries) < 1

    @property
    def mixed_per_step(self) -> int:
        """Number of groups of a step that come from the folders of data.mix."""
        return round(total_share(self.data.entries) * self.training.prompts_per_step)

    @property
    def schedule(self) -> Schedule:
        """The schedule of the run's own samples, step by step.

        Raises:
            ValueError: the regime does not fit the number of groups per step.
        """
        own = self.training.prompts_per_step - self.mixed_per_step
        return Schedule(self.regime, own, self.seed, self.data.max_staleness)

    @property
    def location(self) -> str:
        """The path or URL of the run's folder."""
        return self.run_dir or f"runs/{self.name}"

    @property
    def folder(self) -> Path:
        """The run's folder on this machine; of a URL, the one in which a learner works."""
        return remote.local_folder(self.location)

    def to_json(self) -> str:
        """Returns the whole configuration as indented JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2, default=str) + "\n"


_DEFAULTS = Config(name="default")

# A run may be resumed with other values of these fields: they do not change the results of the
# steps already taken.
RESUMABLE_FIELDS = (
    "run_dir",
    "compiled",
    "task.verify_processes",
    "task.verify_timeout",
    "task.max_failure_share",
    "training.steps",
    "evaluation",
    "checkpoint",
    "logging",
    "mesh",
)


def load_file(path: str | Path) -> Config:
    """Returns the configuration that a Python file's `config()` builds.

    While the file runs, its folder is on the import path, so that configurations may share modules
    beside them.

    Args:
        path: the Python file.

    Raises:
        UsageError: the file is missing, or has no `config` function that returns a Config.
    """
    path = Path(path)
    if not path.is_file() or path.suffix != ".py":
        near = nearest(path.name, (file.name for file in path.parent.glob("*.py")))
        raise UsageError(f"config file {path}: expected a Python file with config(){near}")
    spec = importlib.util.spec_from_file_location(f"grre_config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
        config = module.config()
    except (
        AttributeError,
        ImportError,
        NameError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise UsageError(f"config file {path}: {error}") from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
    if not isinstance(config, Config):
        raise UsageError(
            f"config() of {path} returned {type(config).__name__}, not grre_jax.config.Config"
        )
    return config


# Fields of stored configurations that were renamed since: old dotted name to the new last part
# (empty if the field is gone) and, where values were renamed too, old value to new value. Only
# stored configurations are read by it; files and command lines take the new names alone.
RENAMED: dict[str, tuple[str, dict[Any, Any]]] = {
    "sampling.num_samples": ("group_size", {}),
    "sampling.slots": ("max_concurrent", {}),
    "training.groups_per_step": ("prompts_per_step", {}),
    "training.row_tokens": ("pack_length", {}),
    "training.rows_per_microbatch": ("packs_per_microbatch", {}),
    "data.drop_no_signal": ("drop_zero_variance", {}),
    "objective.options.single": ("singleton_baseline", {"zero": "mean", "reward": "none"}),
    "evaluation.ranking_questions": ("", {}),
}


def renamed(stored: dict[str, Any]) -> dict[str, Any]:
    """Returns a stored configuration, as a dictionary, with the fields of this version."""
    stored = copy.deepcopy(stored)
    for old, (new, values) in RENAMED.items():
        *sections, name = old.split(".")
        holder: Any = stored
        for section in sections:
            holder = holder.get(section) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and name in holder:
            value = holder.pop(name)
            if new:
                holder[new] = values.get(value, value)
    return stored


def from_dict(values: dict[str, Any]) -> Config:
    """Builds the configuration that `Config.to_json` of this version or an older one wrote.

    Raises:
        ValueError, TypeError: values that are not a configuration.
    """

    def build(default: Any, given: Any) -> Any:
        if not dataclasses.is_dataclass(default):
            return given
        if not isinstance(given, dict):
            raise TypeError(f"{type(default).__name__} takes a JSON object, got {given!r}")
        inner = {name: build(getattr(default, name, None), x) for name, x in given.items()}
        return type(default)(**inner)

    return build(_DEFAULTS, renamed(values) if isinstance(values, dict) else values)


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Returns the dotted names of the fields in which two configurations differ."""
    names = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(prefix + key)
    return names
