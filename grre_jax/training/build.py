"""The parts of a run, built from its configuration: task, tokenizer, model, objective and mesh."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from grre_jax import models, objectives, parallel, tasks
from grre_jax.domains import ConfigError
from grre_jax.errors import UsageError
from grre_jax.json_files import read_object, require
from grre_jax.models.checkpoints import adapters
from grre_jax.models.config import ModelConfig
from grre_jax.models.lora import LoraConfig, initial
from grre_jax.models.source import ModelSource
from grre_jax.models.transformer import Transformer
from grre_jax.random_streams import Purpose, run_key
from grre_jax.tasks.environments.environment import InProcessEnvironments
from grre_jax.tasks.judging import InProcess
from grre_jax.tasks.pool import ClusterJudges, EnvironmentPool, make_judge
from grre_jax.tasks.task import is_environment, reward_name
from grre_jax.training import step
from grre_jax.training.config.run import Config
from grre_jax.training.data.pack import BatchShape


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a run, built from its configuration."""

    config: Config
    task: tasks.Task
    tokenizer: tasks.Tokenizer
    model: Transformer
    objective: objectives.Objective
    mesh: Mesh
    shape: BatchShape

    @cached_property
    def graph(self) -> Any:
        """The static half of the model."""
        return nnx.graphdef(self.model)

    @property
    def params(self) -> Any:
        """All parameters of the model, as it was built; a run's first step deletes the trained."""
        return nnx.to_pure_dict(nnx.state(self.model))

    @property
    def trained(self) -> Any:
        """Those of them that are trained."""
        return step.split(self.model)[1]

    @cached_property
    def frozen(self) -> Any:
        """The parameters that are not trained, on the mesh; {} if all are trained."""
        return step.frozen(self.model, self.mesh)

    @cached_property
    def judge(self) -> InProcess | InProcessEnvironments:
        """The judge of completions by `config.task`, or the runner of its environments; processes
        that it starts end with it.
        """
        return make_judge(self.task, self.config.task, self.config.seed)

    def use_judges(self, actors: Sequence[Any]) -> None:
        """Has actors of a cluster judge.

        Args:
            actors: returned by `pool.start_judges`; if empty, nothing changes.
        """
        if not actors:
            return
        config = self.config.task
        seed = self.config.seed
        if is_environment(self.task):
            judge = EnvironmentPool([ClusterJudges(config, seed, [actor]) for actor in actors])
        else:
            judge = ClusterJudges(config, seed, actors)
        # As `cached_property` stores it: the record is frozen, which refuses an assignment.
        vars(self)["judge"] = judge

    def full(self, params: Any) -> Any:
        """Returns all parameters of a policy from its trained ones."""
        return step.full(params, self.frozen)

    def provenance(self) -> dict[str, Any]:
        """Returns the metadata of every data set that the run samples; the checkpoint of the
        version that sampled it is added if it is known.
        """
        return {
            "task": self.task.name,
            "tokenizer": self.tokenizer.fingerprint,
            "model": self.config.model.path or "new",
            "checkpoint": "",
            "reward": reward_name(self.task),
            "engine": self.config.sampling.engine,
            "dtype": self.config.model.compute_dtype or self.config.model.dtype,
            "run": self.config.name,
            "contains": [source] if (source := getattr(self.task, "training_source", None)) else [],
        }


def build(config: Config) -> Parts:
    """Builds task, tokenizer, model, objective and mesh.

    Raises:
        UsageError: a field that cannot be used, with its name.
        DataError: a model or data file that is missing or damaged.
    """
    objective = build_objective(config)
    if config.model.shape and not config.model.path:
        raise UsageError(
            f"model.shape: expected empty to train, got {config.model.shape!r}, which"
            " has no weights. Set model.path to a checkpoint of that shape"
        )
    task = config.task.build(config.seed)
    tokenizer = build_tokenizer(config, task)
    try:
        mesh = parallel.make_mesh(config.mesh)
        shape = batch_shape(config, mesh)
    except ValueError as error:
        raise UsageError(str(error)) from error
    model = build_model(config, tokenizer, mesh)
    shape = with_routes(config, model.config, shape)
    return Parts(config, task, tokenizer, model, objective, mesh, shape)


def build_objective(config: Config) -> objectives.Objective:
    """Builds the loss, and checks it against the configuration's data and sampling.

    Raises:
        UsageError: a field that cannot be used, with its name.
    """
    try:
        objective = objectives.algorithm(config.objective.name, **config.objective.options)
    except ValueError as error:
        raise UsageError(f"objective: {error}") from error
    data = config.data
    stored = f"data.path={data.path}" if data.path else f"data.mix={data.mix}" if data.mix else ""
    if "expert" in objective.requires and not stored:
        raise UsageError(
            f"objective {objective.name} needs completions of an expert, and this run samples all"
            " of its data: mix some in with --data.mix FOLDER=0.25:expert"
        )
    if "staleness" in objective.requires and stored:
        raise UsageError(
            f"objective {objective.name} needs the age of the data in policy versions, and {stored}"
            " has another run's versions: choose an objective without it, such as grpo"
        )
    if objective.advantage.of_components and not objective.components:
        raise UsageError(
            f"objective {objective.name} normalises the components of the reward apart: name those"
            " of the task's verdicts with --objective.options.components correct,format"
        )
    if config.sampling.temperature <= 0:
        raise UsageError(
            "sampling.temperature: expected a number above 0 to train (greedy samples have no"
            f" ratio), got {config.sampling.temperature}"
        )
    return objective


def batch_shape(config: Config, mesh: Mesh) -> BatchShape:
    """Returns the shape of the run's batches on a mesh.

    Raises:
        ValueError: a row is too short for the limits on tokens.
    """
    return BatchShape.of_run(
        config.training.prompts_per_step,
        config.sampling.group_size,
        config.sampling.max_prompt_tokens,
        config.sampling.max_new_tokens,
        config.training.pack_length,
        config.training.packs_per_microbatch,
        parallel.row_devices(mesh),
        config.training.share_prompts,
        config.sampling.max_turns,
    )


def with_routes(config: Config, model: ModelConfig, shape: BatchShape) -> BatchShape:
    """Returns the shape of a run's batches with the routes that it replays.

    Raises:
        ConfigError: a field on experts does not fit the model or another field.
    """
    training = config.training
    records = config.sampling.record_routes
    fields = {
        "sampling.record_routes": records,
        "training.replay_routes": training.replay_routes,
        "training.router_balance": training.router_balance,
    }
    for name, value in fields.items():
        if value and not model.num_experts:
            raise ConfigError(name, "off for a model without experts", value)
    if training.replay_routes and config.samples and not records:
        domain = "true beside training.replay_routes, of a run that samples"
        raise ConfigError("sampling.record_routes", domain, records)
    if not training.replay_routes:
        return shape
    return dataclasses.replace(shape, routes=(model.num_layers, model.experts_per_token))


def build_tokenizer(config: Config, task: tasks.Task) -> tasks.Tokenizer:
    """Builds the model's tokenizer, or the task's for a new model.

    Raises:
        UsageError: a new model, and a task without a tokenizer.
    """
    if config.model.path:
        model = config.model
        return tasks.load_tokenizer(
            model.path,
            model.system_prompt,
            model.tools,
            model.template_arguments,
        )
    if value := config.model.template_arguments:
        domain = "empty for a new model, which has no chat template"
        raise ConfigError("model.template_arguments", domain, value)
    tokenizer = getattr(task, "tokenizer", None)
    if tokenizer is None:
        raise UsageError(
            f"task {task.name} has no tokenizer for a new model: set model.path to a Hugging Face"
            " folder"
        )
    return tokenizer


def dtypes(source: ModelSource) -> tuple[Any, Any]:
    """Returns the dtypes of parameters and of activations (None: the parameters')."""
    compute = source.compute_dtype
    return jnp.dtype(source.dtype), jnp.dtype(compute) if compute else None


def lora_config(source: ModelSource) -> LoraConfig | None:
    """Returns the size of the low-rank terms that are trained, of model.adapter or of the fields;
    None if all weights are trained.

    Raises:
        UsageError: fields that contradict the adapter.
        DataError: an adapter that is missing or damaged, or has options that are not supported.
    """
    if not source.adapter:
        return source.lora
    lora = adapters.load_adapter_config(source.adapter)
    if source.lora not in (None, lora):
        raise UsageError(
            f"model.adapter {source.adapter} has rank {lora.rank}, alpha {lora.alpha:g} and"
            f" targets {', '.join(lora.targets)}, which the fields model.lora_* contradict: leave"
            " model.lora_rank at 0"
        )
    return lora


def build_model(
    config: Config, tokenizer: tasks.Tokenizer, mesh: Mesh | None = None
) -> Transformer:
    """Builds the policy: loaded from model.path, or new with weights drawn from the run's seed.

    Args:
        config: the run.
        tokenizer: sets the vocabulary of a new model; ids that it lacks have no probability.
        mesh: over which the parameters are laid out, if given.

    Returns:
        The model, with the low-rank terms that are trained, if any.
    """
    lora = lora_config(config.model)
    model = _base_model(config, tokenizer, mesh)
    model.limit_ids(tokenizer.vocab_size)
    if config.model.adapter:
        adapters.add_adapter(model, config.model.adapter)
    elif lora is not None:
        rngs = nnx.Rngs(params=run_key(config.seed, Purpose.LORA))
        model.layers.add_lora(lora, initial(model.config, lora, rngs, dtypes(config.model)[0]))
    # After any low-rank terms were added, so that they are laid out too.
    if mesh is not None:
        step.place(model, mesh)
    return model


def _base_model(config: Config, tokenizer: tasks.Tokenizer, mesh: Mesh | None) -> Transformer:
    source = config.model
    dtype, compute = dtypes(source)
    options = {"dtype": dtype, "compute_dtype": compute, "remat": source.remat}
    if source.path:
        return models.load(source.path, mesh=mesh, **options)
    shape = _new_shape(source, tokenizer)
    return Transformer(shape, rngs=nnx.Rngs(params=run_key(config.seed, Purpose.INIT)), **options)


def _new_shape(source: ModelSource, tokenizer: tasks.Tokenizer) -> ModelConfig:
    sizes = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
    sizes += ("head_dim", "num_experts", "experts_per_token")
    fields: dict[str, Any] = {name: getattr(source, name) for name in sizes}
    if source.num_experts:
        fields |= {"family": "mixtral"}
    eos_ids = tuple(tokenizer.eos_ids)
    try:
        return ModelConfig(vocab_size=tokenizer.vocab_size, eos_ids=eos_ids, **fields)
    except ValueError as error:
        raise UsageError(f"model.{error}") from error


def model_contents(config: Config) -> set[str]:
    """Returns the benchmark splits that the model at model.path and the adapter at model.adapter
    were trained on, by their grre_provenance.json (exported runs have one).

    Raises:
        DataError: a grre_provenance.json that cannot be read.
    """
    folders = filter(None, (config.model.path, config.model.adapter))
    return set().union(*(contents(Path(name) / "grre_provenance.json") for name in folders))


def contents(file: Path) -> set[str]:
    """Returns the benchmark splits in the training data that a provenance file describes; none
    without the file.

    Raises:
        DataError: it cannot be read.
    """
    if not file.is_file():
        return set()
    return set(require(read_object(file).get("contains"), tuple[str, ...], file, "contains"))
