"""The configuration of a run: typed and frozen, built by a Python file, overridden by dotted names
on the command line, and described field by field.
"""

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grre_jax.domains import (
    ConfigError,
    Record,
    Seed,
    annotations,
    literal,
    nearest,
    parse,
)
from grre_jax.errors import DataError, UsageError, raised_in
from grre_jax.models.source import ModelSource
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.reporting.metrics import LoggingConfig
from grre_jax.sampling_params import SamplingConfig
from grre_jax.storage import remote
from grre_jax.tasks.config import TaskConfig
from grre_jax.training.config.sections import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    EvaluationConfig,
    ObjectiveConfig,
    TrainingConfig,
    WarmStartConfig,
    total_share,
)
from grre_jax.training.data.plan import Regime, Schedule
from grre_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class Config(Record):
    """The name, folder and seed of a run, and its sections.

    Args:
        name (any text): the run's name.
        run_dir (a path or URL): the run's folder, or its URL in an object store (s3://, gs://);
            runs/NAME if empty.
        seed: seed of every random draw of the run.
        compiled (a path, none or empty): folder for compiled programs, which later commands load;
            grre_jax/compiled in the user's cache folder if empty; none keeps none.

    Examples:
        A sampler whose weights are refreshed every 20 steps:

        >>> from grre_jax import config as c
        >>> config = c.Config(
        ...     name="stale",
        ...     objective=c.ObjectiveConfig("rec_oneside_nois", {"epsilon_high": 2.0}),
        ...     regime=c.Regime(sync_interval=20),
        ...     training=c.TrainingConfig(steps=100, prompts_per_step=16),
        ... )
        >>> config.location, config.schedule(25).version, config.samples
        ('runs/stale', 20, True)
    """

    name: str
    run_dir: str = ""
    seed: Seed = 0
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
    cluster: ClusterConfig = ClusterConfig()
    compiled: str = ""

    def _validate(self) -> None:
        groups = self.training.prompts_per_step
        shares = total_share(self.data.entries)
        most = groups if shares == 1 else groups - 1
        if self.data.mix and not 0 < self.mixed_per_step <= most:
            domain = f"shares that leave at least one of {groups} groups a step to each source"
            raise ConfigError("data.mix", domain, self.data.mix)
        if self.regime.newest:
            self._validate_newest()
        oldest = self.schedule.regime.oldest(self.training.steps) if self.samples else 0
        if 0 <= self.data.max_staleness < oldest:
            domain = f"at least {oldest}, the largest age of batches of the regime, or -1"
            raise ConfigError("data.max_staleness", domain, self.data.max_staleness)

    def _validate_newest(self) -> None:
        """Checks what needs a known policy at every position."""
        excluded = {
            "regime.replay_ratio": self.regime.replay_ratio,
            "data.dynamic_sampling": self.data.dynamic_sampling,
            "data.mix": self.data.mix,
            "data.path": self.data.path,
        }
        if self.cluster.learner.hosts > 1:
            excluded["cluster.learner.hosts"] = self.cluster.learner.hosts
        for name, value in excluded.items():
            if value:
                raise ConfigError("regime.newest", f"false beside {name} = {value}", True)
        if not self.cluster.samples:
            raise ConfigError("regime.newest", "false without explorers (cluster.address)", True)

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
        """The schedule of the run's own samples, step by step; raises ConfigError if the regime
        does not fit the number of groups per step.
        """
        groups = self.training.prompts_per_step - self.mixed_per_step
        return Schedule(self.regime, groups, self.seed, self.data.max_staleness)

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
    "cluster",
)


def load_file(path: str | Path) -> Config:
    """Returns the configuration that a Python file's `config()` builds.

    While the file runs, its folder is on the import path, so that configurations may share modules
    beside them.

    Args:
        path: the Python file.

    Raises:
        UsageError: no file with `config() -> Config`, or it raises; names field and line.

    Examples:
        >>> from pathlib import Path
        >>> from grre_jax import config as c
        >>> _ = Path("mine.py").write_text('''
        ... from grre_jax import config as c
        ... def config():
        ...     return c.Config(name="mine", training=c.TrainingConfig(steps=5))
        ... ''')
        >>> c.load_file("mine.py").training.steps
        5
    """
    path = Path(path)
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"config file {path}: expected a Python file with config()")
    spec = importlib.util.spec_from_file_location(f"grre_config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
        config = module.config()
    except DataError:
        raise
    except Exception as error:
        message = (
            str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        )
        raise UsageError(f"config file {raised_in(path, error)}: {message}") from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
    if not isinstance(config, Config):
        raise UsageError(
            f"config() of {path} returned {type(config).__name__}, not grre_jax.config.Config"
        )
    return config


def with_fields(section: Any, changes: Mapping[str, Any], prefix: str = "") -> Any:
    """Returns a configuration, or one of its sections, with other values of fields.

    Args:
        section: the configuration.
        changes: values by name; of a section a dictionary of them. Another `name` drops the options
            that the configuration has, as in `override`.
        prefix: of the names.

    Raises:
        UsageError: an unknown field (with the nearest name), or a value outside its domain.
    """
    if hasattr(section, "options") and changes.get("name", section.name) != section.name:
        section = dataclasses.replace(section, options={})
    values = {}
    for name, change in changes.items():
        if name not in vars(section):
            raise unknown_field(prefix + name)
        value = getattr(section, name)
        if dataclasses.is_dataclass(value) and isinstance(change, Mapping):
            change = with_fields(value, change, f"{prefix}{name}.")
        elif isinstance(value, dict) and isinstance(change, dict):
            change = value | change
        values[name] = change
    try:
        return dataclasses.replace(section, **values)
    except ConfigError as error:
        raise error.within(prefix) from error


def unknown_field(name: str) -> UsageError:
    """Returns the error for a dotted name that is not a field's, with the nearest one."""
    names = [field.name for field in fields(Config(name="default"))]
    return UsageError(
        f"unknown field {name!r}{nearest(name, names)}: grre train CONFIG --print-config lists all"
    )


# Fields of stored configurations that were renamed since: dotted name and new last part, empty if
# the field is gone. Files and command lines take the new names alone.
RENAMED = {
    "sampling.num_samples": "group_size",
    "sampling.slots": "max_concurrent",
    "sampling.weight_dtype": "",
    "training.groups_per_step": "prompts_per_step",
    "training.row_tokens": "pack_length",
    "training.rows_per_microbatch": "packs_per_microbatch",
    "data.drop_no_signal": "drop_zero_variance",
    "objective.options.single": "singleton_baseline",
    "evaluation.ranking_questions": "",
    "mesh.sampler": "",
    "model.template_date": "",
    "start_from": "",
    "data.questions": "",
    "data.overlong": "",
    "data.prefer": "",
    "data.max_uses": "",
    "checkpoint.best_smallest": "",
    "task.failed_reward": "",
}
# Of these, fields that changed what is sampled: a configuration with a value is refused.
_REFUSED = ("sampling.weight_dtype", "model.template_date")
_RENAMED_WORDS = {"zero": "mean", "reward": "none"}  # of objective.options.single


def from_dict(values: dict[str, Any]) -> Config:
    """Builds the configuration that `Config.to_json` of this version or an older one wrote.

    Raises:
        UsageError: an unknown field, or a value outside its domain.

    Examples:
        >>> import json
        >>> from grre_jax import config as c
        >>> config = c.Config(name="mine", training=c.TrainingConfig(steps=5))
        >>> stored = json.loads(config.to_json())
        >>> c.from_dict(stored) == config, stored["training"]["steps"]
        (True, 5)
    """
    if not isinstance(values, dict):
        raise ConfigError("configuration", "a JSON object", values)
    return with_fields(Config(values.get("name")), _renamed(values, ""))


def _renamed(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Returns a section of a stored configuration with the names of this version."""
    renamed = {}
    for stored, value in values.items():
        name = RENAMED.get(prefix + stored, stored)
        if prefix + stored in _REFUSED and value:
            raise ConfigError(prefix + stored, "'' (this version does not have the field)", value)
        if isinstance(value, dict):
            value = _renamed(value, f"{prefix}{name}.")
        elif prefix + stored == "objective.options.single":
            value = _RENAMED_WORDS.get(value, value)
        if name:
            renamed[name] = value
    return renamed


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Returns the dotted names of the fields in which two configurations differ.

    Examples:
        >>> import dataclasses
        >>> from grre_jax import config as c
        >>> one = c.Config(name="one")
        >>> other = dataclasses.replace(one, name="other", regime=c.Regime(sync_interval=20))
        >>> c.differences(dataclasses.asdict(one), dataclasses.asdict(other))
        ['name', 'regime.sync_interval']
    """
    names = []
    for key in sorted(old.keys() | new.keys()):
        a = old.get(key)
        b = new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(prefix + key)
    return names


class Field(NamedTuple):
    """A field of a configuration.

    Attributes:
        name: dotted, as on the command line.
        section: the class that has it, whose docstring has its meaning.
        annotation: see `domains.checked`.
        default: its value in the configuration that was walked.
    """

    name: str
    section: type
    annotation: Any
    default: Any


def fields(section: Any, prefix: str = "") -> list[Field]:
    """Returns every field of a configuration or of one of its sections, in order.

    Args:
        section: the configuration; its values become the defaults.
        prefix: of the names.
    """
    listed = []
    for field in dataclasses.fields(section):
        name = prefix + field.name
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            listed += fields(value, f"{name}.")
        else:
            annotation = annotations(type(section))[field.name]
            listed.append(Field(name, type(section), annotation, value))
    return listed


def override(config: Config, arguments: Sequence[str]) -> Config:
    """Applies `--dotted.name value` (or `--dotted.name=value`) arguments to a configuration.

    All of them are applied together, since fields must fit each other; of two values for one field
    the last counts. Entries of `options` may be new: `--objective.options.epsilon_low 0.6`; a JSON
    object gives several. Another `name` (of the objective, of the task) drops the options.

    Args:
        config: the configuration.
        arguments: words of the command line.

    Raises:
        UsageError: an unknown field, a missing value, or a value outside its domain.
    """
    table = {field.name: field for field in fields(config)}
    changes: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not equals:
            text = next(words, None)
        if not word.startswith("--") or text is None:
            raise UsageError(f"{word}: expected a field and its value: --name VALUE")
        parent, _, entry = name.rpartition(".")
        if name in table:
            _put(changes, name, parse(name, table[name].annotation, text))
        elif parent in table and isinstance(table[parent].default, dict):
            _put(changes, parent, {entry: literal(text)})
        else:
            raise unknown_field(name)
    return with_fields(config, changes)


def _put(changes: dict[str, Any], name: str, value: Any) -> None:
    """Enters a value under a dotted name; entries of a dictionary are added to earlier ones."""
    *sections, last = name.split(".")
    for section in sections:
        changes = changes.setdefault(section, {})
    changes[last] = changes.get(last, {}) | value if isinstance(value, dict) else value
