"""A run from top to bottom: warm start, then explore and learn in turn, evaluated, checkpointed and recorded."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from grre_jax import reporting, rollouts, sampling
from grre_jax.config import Config
from grre_jax.parallel import mesh as meshes
from grre_jax.parallel import processes
from grre_jax.training import setup
from grre_jax.training import state as states
from grre_jax.training.batches import place
from grre_jax.training.checkpoint import Checkpoints
from grre_jax.training.data import Batches, SampledBatches, stored_batches, training_contents
from grre_jax.training.draws import Purpose, run_key
from grre_jax.training.evaluate import evaluate, refuse_contaminated
from grre_jax.training.explore import Explorer, explore
from grre_jax.training.export import write_model
from grre_jax.training.pending import PendingMetrics
from grre_jax.training.ranking import held_out_groups, ranking, save_ranking
from grre_jax.training.step import make_train_step
from grre_jax.training.stopping import StopRequest
from grre_jax.training.warm_start import warm_start


def train(config: Config, *, resume: bool = False, overwrite: bool = False, console: Any = None) -> Path:
    """Runs a configuration to its end, or resumes it.

    The processes of a run (see `parallel.distributed`) all call this with the same arguments and take the same steps. Each samples and seals its share of the
    data and holds its share of the arrays; the first alone writes the log, the configuration and the report, and prints.

    Args:
        config: the run.
        resume: continue the run in the folder from its last checkpoint.
        overwrite: replace the run in the folder.
        console: a rich console; standard output if None. Only the first process prints.

    Returns:
        The run's folder: config.json, metrics.jsonl, rollouts/, checkpoints/, tensorboard/, plots/, summary.json.

    Raises:
        UsageError, DataError: as `setup.build`, `setup.open_run_folder` and the rollout readers.
        stopping.Stopped: by SIGTERM or SIGINT, after a checkpoint.
    """
    first = processes.is_first()
    console = console if console and first else reporting.progress.make_console(quiet=not first)
    # ---- the parts, before the folder is touched: what is wrong with a configuration should leave no trace
    parts = setup.build(config)
    stored = stored_batches(parts, rollouts.read(config.data.path)) if config.data.path else None
    held_out = held_out_groups(parts)
    contains = training_contents(parts)
    evaluation_source = getattr(parts.task, "evaluation_source", "")
    if config.evaluation.questions:
        refuse_contaminated(contains, evaluation_source, allowed=config.evaluation.allow_contaminated)
    folder = _open_folder(config, {**parts.provenance(), "contains": sorted(contains)}, resume=resume, overwrite=overwrite)
    reporting.print_header(_header(parts, folder), console=console)

    optimizer = states.make_optimizer(config.optimizer)
    graph, state = states.create(parts.model, optimizer, parts.mesh, donate=True)
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint.keep)
    saved = checkpoints.steps if resume else []
    last = saved[-1] if saved else 0
    kept_rows = {"train": last, "eval": last or -1, "warm_start": config.warm_start.steps if saved else -1} if resume else None
    with StopRequest() as stop, _open_log(config, folder, kept_rows) as log:
        # ---- the first policy: restored, or warm-started and saved as step 0
        if saved:
            state = checkpoints.restore(states.release(state))
        else:
            if config.warm_start.steps:
                states.release(state.opt_state)  # the warm start has one of its own
                params = warm_start(parts, graph, state.params, folder, log, stop, console)
                state = states.fresh(params, optimizer, parts.mesh)
            checkpoints.save(state, wait=True)
        start_params = checkpoints.restore_params(state.params, 0)

        # ---- explore and learn
        data = stored or _sampled_batches(config, folder / "rollouts")
        run = _Run(parts, graph, folder, data, log, checkpoints, start_params, stop, console)
        before = ranking(graph, parts.full(start_params), held_out, parts.mesh) if held_out else None
        state = run.learn(state, make_train_step(graph, optimizer, config.optimizer.schedule(), parts.mesh))

        # ---- what came of it
        if not config.data.path:
            console.print("sampler  " + ", ".join(f"{count} {name}" for name, count in sampling.compiled_programs().items()) + " programs compiled")
        after = ranking(graph, parts.full(state.params), held_out, parts.mesh) if held_out else None
        checkpoints.save(state, wait=True)
        checkpoints.close()
        if held_out and first:
            save_ranking(folder, before, after, held_out, console)
        if config.checkpoint.export:
            _export(parts, graph, state, folder / "model", contains)
            console.print(f"model    {folder / 'model'}")
    if first:
        reporting.report([folder], console=console)
    return folder


def _open_log(config: Config, folder: Path, kept_rows: dict[str, int] | None) -> reporting.RunLog | reporting.NoLog:
    if not processes.is_first():
        return reporting.NoLog()
    wandb = {"project": config.logging.wandb_project, "name": config.name} if config.logging.wandb_project else None
    return reporting.open_log(
        folder, resume_step=kept_rows, tensorboard=config.logging.tensorboard, wandb=wandb, config=dataclasses.asdict(config)
    )


def _export(parts: setup.Parts, graph: Any, state: states.TrainState, folder: Path, contains: set[str]) -> None:
    if processes.is_first() and folder.exists():
        shutil.rmtree(folder)  # of this run's earlier end: it was resumed with more steps
    write_model(parts, graph, parts.full(state.params), folder, step=int(state.step), contains=contains)


def _open_folder(config: Config, provenance: dict[str, Any], *, resume: bool, overwrite: bool) -> Path:
    """The run's folder, made or checked by the first process and seen by all.

    Raises:
        UsageError, DataError: as `setup.open_run_folder`, in all processes; or their configurations differ, or they do not share the folder.
    """
    processes.require_same(config.to_json() + f"{resume=} {overwrite=}", "the configuration or command line")

    def make() -> None:
        folder = setup.open_run_folder(config, resume=resume, overwrite=overwrite)
        (folder / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")

    processes.on_first(make)
    file = config.folder / "config.json"
    if blind := np.flatnonzero(processes.numbers(int(file.is_file() and file.read_text() == config.to_json())) == 0).tolist():
        raise UsageError(
            f"process {', '.join(map(str, blind))} does not see {file}, which process 0 wrote: the run folder must lie on storage that all processes share; choose another with --run-dir"
        )
    return config.folder


def evaluation_explorer(parts: setup.Parts, graph: Any) -> Explorer:
    """Samples held-out questions as the evaluation's own fields say, with draws of its own."""
    config = parts.config
    own = {name: getattr(config.evaluation, name) for name in ("num_samples", "temperature", "top_k", "top_p")}
    settings = dataclasses.replace(config.sampling, **own)
    return Explorer(graph, parts.task, parts.tokenizer, settings, parts.mesh, config.seed, Purpose.EVALUATE)


def _sampled_batches(config: Config, folder: Path) -> SampledBatches:
    folder.mkdir(exist_ok=True)
    return SampledBatches(rollouts.read(folder), config.regime, config.training.groups_per_step)


@dataclasses.dataclass
class _Run:
    """The loop's surroundings, fixed for a run."""

    parts: setup.Parts
    graph: Any
    folder: Path
    data: Batches
    log: Any
    checkpoints: Checkpoints
    start_params: Any
    stop: StopRequest
    console: Any

    def __post_init__(self):
        config, parts = self.parts.config, self.parts
        self.explorer = Explorer(self.graph, parts.task, parts.tokenizer, config.sampling, parts.mesh, config.seed)
        self.evaluator = evaluation_explorer(parts, self.graph)
        self.questions = parts.task.evaluation(config.evaluation.questions) if config.evaluation.questions else []

    def learn(self, state: states.TrainState, step_fn: Callable) -> states.TrainState:
        """Steps from where the state stands to the end of the run."""
        config, steps = self.parts.config, self.parts.config.training.steps
        first = int(state.step)
        pending = PendingMetrics(self.log, time.monotonic())
        # KL penalties and their like are to the policy that the run started from.
        reference = self.start_params if "ref_logprobs" in self.parts.objective.requires else None
        # All that a step takes is on the devices before it is called: the guard says if anything is not.
        key = run_key(config.seed, Purpose.SHAPE)
        given = (self.parts.objective, np.float32(config.sampling.temperature), jax.random.key_data(key))
        objective, temperature, key_data = jax.tree.map(lambda x: processes.put(np.asarray(x), meshes.replicated(self.parts.mesh)), given)
        key = jax.random.wrap_key_data(key_data, impl=jax.random.key_impl(key))
        with reporting.TrainingProgress(
            steps, start_step=first, description="train", console=self.console, enabled=processes.is_first()
        ) as bar:
            if first == 0:
                self._evaluate(state, 0, bar)
            for step in range(first, steps):
                self._refresh(state, step, first, bar, pending)
                version = None if config.data.path else step  # another run's data counts another policy's versions
                batch = place(self.data.groups(step), self.parts.shape, self.parts.objective, self.parts.mesh, version)
                with jax.transfer_guard("disallow"):
                    state, metrics = step_fn(state, batch, objective, temperature, key, reference, self.parts.frozen)
                # The previous step's metrics are read now, while this step computes: nothing waits for the device.
                bar.update(step + 1, pending.swap(step + 1, metrics, self.data.staleness(step)))
                done = step + 1
                evaluates = done == steps or (config.evaluation.every and done % config.evaluation.every == 0)
                saves = done == steps or done % config.checkpoint.every == 0
                if evaluates or saves:
                    # Before the checkpoint: a run killed after it resumes beyond this step, and would not write the step's row again.
                    bar.update(done, pending.swap(done, None, 0.0))
                if evaluates:
                    self._evaluate(state, done, bar)
                    pending.clock = time.monotonic()
                if saves:
                    self.checkpoints.save(state)
                self._stop_if_asked(state, pending)
        return state

    def _stop_if_asked(self, state: states.TrainState, pending: PendingMetrics) -> None:
        """Between two steps, or two data sets of one step: saves the state and ends the run if a signal asked for it."""
        if self.stop.agreed():
            pending.swap(int(state.step), None, 0.0)
            self.checkpoints.save(state, wait=True)
            raise self.stop.stopped(f"at step {int(state.step)}, which is saved: continue with --resume")

    def _refresh(self, state: states.TrainState, step: int, first: int, bar: Any, pending: PendingMetrics) -> None:
        """Lets the policy of this step sample all batches that the regime has it sample."""
        config = self.parts.config
        if config.data.path:
            return
        # A resumed run may lack batches that an earlier policy was to sample (a run made longer, a shard lost): they can be drawn as long as that
        # policy's checkpoint exists.
        versions = {0, config.regime.version(step), step} & {step, *self.checkpoints.steps} if step == first else {step}
        for version in sorted(versions):
            batches = config.regime.batches(version, config.training.steps)
            positions = [p for s in batches if s >= step for p in self.data.positions(s)]
            if positions:
                bar.phase(f"sampling {len(positions)} groups")
                params = state.params if version == step else self.checkpoints.restore_params(state.params, version)
                explore(
                    self.explorer,
                    self.parts.full(params),
                    folder=self.folder / "rollouts",
                    reader=self.data.reader,
                    positions=positions,
                    policy_version=version,
                    metadata=self.parts.provenance(),
                    between=partial(self._stop_if_asked, state, pending),
                )
                bar.phase("")

    def _evaluate(self, state: states.TrainState, step: int, bar: Any) -> None:
        if self.questions:
            bar.phase("evaluating")
            scalars = evaluate(self.evaluator, *map(self.parts.full, (state.params, self.start_params)), self.questions, step=step)
            self.log.write("eval", step, scalars)
            bar.update(step, {"accuracy": scalars["accuracy"]})
            bar.phase("")


def _header(parts: setup.Parts, folder: Path) -> dict[str, Any]:
    config = parts.config
    regime = "offline" if config.regime.offline else f"sync_interval {config.regime.sync_interval}, sync_offset {config.regime.sync_offset}"
    numbers = ", ".join(f"{name} {float(value):g}" for name, value in parts.objective.numbers.items())
    return {
        "run": f"{config.name} in {folder}",
        "model": f"{config.model.path or 'new'}, {parts.model.config.num_parameters:,} parameters, {config.model.dtype}",
        "lora": f"rank {lora.rank}, alpha {lora.alpha:g}, on {', '.join(lora.targets)}" if (lora := parts.model.lora) else None,
        "task": parts.task.name,
        "objective": parts.objective.name + (f" ({numbers})" if numbers else ""),
        "data": f"stored rollouts of {config.data.path}" if config.data.path else regime,
        "step": f"{config.training.groups_per_step} groups x {config.sampling.num_samples}, rows of {parts.shape.row_tokens} tokens, learning rate {config.optimizer.learning_rate:g}",
        "devices": setup.devices_line(),
    }
