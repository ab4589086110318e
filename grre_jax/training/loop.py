"""A run from top to bottom: warm start, then explore and learn in turn, evaluated, checkpointed and recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from grre_jax import reporting, rollouts, sampling
from grre_jax.config import Config
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError, system_failure
from grre_jax.parallel import mesh as meshes
from grre_jax.parallel import processes
from grre_jax.rollouts.store_path import StorePath, remove_tree
from grre_jax.tasks import Question
from grre_jax.training import checkpoint, explorers, setup, stored_folders, workspaces
from grre_jax.training import state as states
from grre_jax.training.ahead import Ahead
from grre_jax.training.batches import PackedBatch, place
from grre_jax.training.checkpoint import Keep
from grre_jax.training.data import Batches, training_contents
from grre_jax.training.data_checks import leaked, warn_of_leak
from grre_jax.training.draws import Purpose, run_key
from grre_jax.training.evaluate import check_best, evaluate, evaluation_explorer, refuse_contaminated, require_best, verdict_scalars
from grre_jax.training.explore import Explorer, encoded_prompt
from grre_jax.training.export import write_model
from grre_jax.training.free_running import FreeBatches
from grre_jax.training.header import header
from grre_jax.training.lease import Lease, write_whole
from grre_jax.training.mending import Mender, relist
from grre_jax.training.mixture import run_batches, stored_data
from grre_jax.training.pending import PendingMetrics, age_scalars
from grre_jax.training.ranking import held_out_groups, ranking, save_ranking
from grre_jax.training.step import make_train_step
from grre_jax.training.stopping import Stopped, StopRequest
from grre_jax.training.supply import SampledElsewhere, SampledHere, StillToSample, Stored, Supply
from grre_jax.training.warm_start import check_demonstrations, warm_start


def train(config: Config, *, resume: bool = False, overwrite: bool = False, console: Any = None) -> Path | StorePath:
    """Runs a configuration to its end, or resumes it: explores and learns in turn.

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
        UsageError, DataError: as `setup.build`, `setup.open_run_folder` and the rollout readers; UsageError too if another learner works in the folder.
        stopping.Stopped: by SIGTERM or SIGINT, after a checkpoint.
    """
    return run(config, Role(), resume=resume, overwrite=overwrite, console=console)


@dataclasses.dataclass(frozen=True)
class Role:
    """What a learner does besides learning.

    Args:
        samples: it samples its own data; else explorers do.
        free: of explorers' data it takes what is young enough (`training.free_running`), not what the schedule names.
    """

    samples: bool = True
    free: bool = False


def run(config: Config, role: Role, *, resume: bool, overwrite: bool, console: Any) -> Path | StorePath:
    """As `train`, in a role."""
    first = processes.is_first()
    console = console if console and first else make_console(quiet=not first)
    # ---- everything that can be wrong with a request is tried before the folder is touched
    parts = setup.build(config)
    folders = stored_folders.open_stored(config, resume=resume)
    stored = stored_data(parts, folders)
    held_out = held_out_groups(parts)
    contains = training_contents(parts, folders.values())
    check(parts, samples=role.samples, contains=contains)
    if config.evaluation.questions and first and not resume:
        warn_of_leak(leaked(config, parts.task))
    lines = header(parts, config.folder)
    provenance = {**parts.provenance(), "contains": sorted(contains), "header": lines}
    optimizer = states.make_optimizer(config.optimizer)
    graph, state = states.create(parts.model, optimizer, parts.mesh, donate=True)
    with _told_what_is_kept(config.folder), workspaces.opened(config.folder) as work, contextlib.ExitStack() as stack:
        stack.callback(parts.judge.close)
        held, undo = _open_folder(config, provenance, role, stack, resume=resume, overwrite=overwrite, console=console)
        folder = config.folder
        if first:
            stored_folders.record(folder, folders)
        reporting.print_header(lines, console=console)

        own = _own_rollouts(parts, role, resume, console) if config.samples else None
        publish = partial(work.push, held.check if held else None)
        checkpoints = checkpoint.opened(folder / "checkpoints", _keep(parts, own, role), before=publish)
        saved = checkpoints.steps if resume else []
        last = saved[-1] if saved else 0
        kept_rows = {"train": last, "eval": last or -1, "warm_start": config.warm_start.steps if saved else -1} if resume else None
        if first and resume:
            work.pull()
        stop, log = stack.enter_context(StopRequest()), stack.enter_context(_open_log(config, work.folder, kept_rows))
        undo.pop_all()  # from here on the run can be resumed
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
        data = FreeBatches(own, config) if role.free else run_batches(config, own, stored) if config.samples else stored
        explorer = Explorer(graph, parts.task, parts.tokenizer, config.sampling, parts.mesh, config.seed, judge=parts.judge)
        if own is None:
            supply: Supply = Stored()
        elif role.samples:
            supply = SampledHere(parts, explorer, own, checkpoints)
        else:
            supply = SampledElsewhere(parts, folder, data, own, checkpoints)
        mender = Mender(parts, explorer, own, checkpoints, role.free, console) if own is not None else None
        learner = _Learner(parts, graph, data, supply, mender, log, checkpoints, start_params, stop, held, console)
        before = ranking(graph, parts.full(start_params), held_out, parts.mesh) if held_out else None
        state = learner.learn(state, make_train_step(graph, optimizer, config.optimizer.schedule(), parts.mesh))

        # ---- what came of it
        if config.samples and role.samples:
            counts = (f"{count} {name}" for name, count in sampling.compiled_programs().items())
            console.print(f"sampler  {', '.join(counts)} programs compiled")
        after = ranking(graph, parts.full(state.params), held_out, parts.mesh) if held_out else None
        checkpoints.save(state, wait=True)
        checkpoints.close()
        if held_out and first:
            save_ranking(work.folder, before, after, held_out, console)
        _conclude(parts, graph, state, contains, log, work, publish, console)
    return folder


def check(parts: setup.Parts, *, samples: bool, contains: Collection[str]) -> None:
    """Tries what a run needs besides its parts, and writes nothing.

    Args:
        parts: of the run.
        samples: whether this process samples the run's own data.
        contains: benchmark splits that the training data holds.

    Raises:
        UsageError, DataError: a package, a field or the task's data is missing or wrong.
    """
    config, task = parts.config, parts.task
    check_best(config)
    processes.on_first(lambda: reporting.check_sinks(**_sinks(config)))
    if samples:
        check_prompts(parts)
    if config.evaluation.questions:
        _check_prompts(parts, task.evaluation(config.evaluation.questions))
        source = getattr(task, "evaluation_source", "")
        refuse_contaminated(contains, source, allowed=config.evaluation.allow_contaminated)
    check_demonstrations(parts)


def check_prompts(parts: setup.Parts) -> None:
    """Reads the first questions that the run samples, if it samples any.

    Raises:
        DataError: the task's data are missing, or a prompt cannot be used.
    """
    config = parts.config
    if config.samples:
        first = config.schedule.sampled(0, config.training.steps)[: config.sampling.prompts_per_call]
        _check_prompts(parts, [parts.task.question(position) for position in first])


def _check_prompts(parts: setup.Parts, questions: Iterable[Question]) -> None:
    limit, vocab = parts.config.sampling.max_prompt_tokens, parts.model.config.vocab_size
    for question in questions:
        encoded_prompt(question, parts.tokenizer, limit, vocab)


def _conclude(
    parts: setup.Parts,
    graph: Any,
    state: states.TrainState,
    contains: set[str],
    log: Any,
    work: workspaces.Workspace,
    publish: Callable[[], None],
    console: Any,
) -> None:
    """The exported model and the report, in the run's folder."""
    folder = parts.config.folder
    if parts.config.checkpoint.export:
        _export(parts, graph, state, work.folder / "model", contains)
        console.print(f"model    {folder / 'model'}")
    if processes.is_first():
        log.close()
        reporting.report([work.folder], rollouts={work.folder: folder / "rollouts"}, console=console)
        publish()
        if work.folder != folder:
            console.print(f"copied   {folder}")


def _keep(parts: setup.Parts, own: rollouts.RolloutReader | None, role: Role) -> Keep:
    """Which checkpoints the run keeps: as the configuration says, and those that explorers elsewhere still need."""
    c = parts.config.checkpoint
    keep = Keep(c.keep, c.best, c.best_metric, c.best_smallest, c.keep_every)
    exact = own is not None and not role.samples and not role.free  # explorers that run freely take the newest
    return dataclasses.replace(keep, needed=StillToSample(parts, own)) if exact else keep


def _open_log(config: Config, folder: Path, kept_rows: dict[str, int] | None) -> reporting.RunLog | reporting.NoLog:
    if not processes.is_first():
        return reporting.NoLog()
    return reporting.open_log(folder, resume_step=kept_rows, config=dataclasses.asdict(config), **_sinks(config))


def _sinks(config: Config) -> dict[str, Any]:
    """The arguments of `open_log` that choose the sinks."""
    wandb = {"project": config.logging.wandb_project, "name": config.name} if config.logging.wandb_project else None
    return {"tensorboard": config.logging.tensorboard, "wandb": wandb}


def _export(parts: setup.Parts, graph: Any, state: states.TrainState, folder: Path, contains: set[str]) -> None:
    if processes.is_first() and folder.exists():
        shutil.rmtree(folder)  # of this run's earlier end: it was resumed with more steps
    write_model(parts, graph, parts.full(state.params), folder, step=int(state.step), contains=contains)


def _open_folder(
    config: Config, provenance: dict[str, Any], role: Role, stack: contextlib.ExitStack, *, resume: bool, overwrite: bool, console: Any
) -> tuple[Lease | None, contextlib.ExitStack]:
    """The run's folder, leased, and made or checked, by the first process and seen by all.

    Returns:
        The lease, in the first process, until the stack ends; and what takes a folder that was made here away again, unless its callbacks are popped.

    Raises:
        UsageError, DataError: as `setup.check_run_folder`, in all processes; another learner works there; or their configurations differ, or they do not share the
            folder.
    """
    processes.require_same(config.to_json() + f"{resume=} {overwrite=} {role=}", "the configuration or command line")
    held: list[Lease] = []
    undo = contextlib.ExitStack()

    def make() -> None:
        replaces = setup.check_run_folder(config, resume=resume, overwrite=overwrite)
        lease = Lease(config.folder / "learner.json", "a learner", console=console, samples=role.samples, free_running=role.free)
        held.append(stack.enter_context(lease))
        stack.enter_context(undo)
        if not (resume or replaces):
            undo.callback(remove_tree, config.folder)
        explorers.refuse_unlike(config.folder, samples=role.samples, free=role.free, overwrite=overwrite, console=console)
        folder = setup.open_run_folder(config, resume=resume, overwrite=overwrite)
        explorers.mark_run(folder)
        write_whole(folder / "provenance.json", json.dumps(provenance, indent=2) + "\n")

    processes.on_first(make)
    file = config.folder / "config.json"
    if blind := np.flatnonzero(processes.numbers(int(file.is_file() and file.read_text() == config.to_json())) == 0).tolist():
        raise UsageError(
            f"process {', '.join(map(str, blind))} does not see {file}, which process 0 wrote: the run folder must lie on storage that all processes share; choose another with --run-dir"
        )
    return held[0] if held else None, undo


def _own_rollouts(parts: setup.Parts, role: Role, resume: bool, console: Any) -> rollouts.RolloutReader:
    folder = parts.config.folder / "rollouts"
    folder.mkdir(exist_ok=True)
    if resume:
        processes.on_first(lambda: relist(folder, parts.provenance(), alone=role.samples, console=console))
    return rollouts.read(folder)


@contextlib.contextmanager
def _told_what_is_kept(folder: Path | StorePath) -> Iterator[None]:
    """Says of an error of the operating system's what of the run is whole.

    Raises:
        DataError: in its place, where nothing else has said more.
    """
    try:
        yield
    except (UsageError, DataError, Stopped):
        raise
    except Exception as error:
        said = system_failure(error)
        if said is None:
            raise
        with contextlib.suppress(OSError):
            left = checkpoint.listed(folder / "checkpoints")
            if left:
                said += f"; the checkpoint of step {left[-1]} is whole: continue from it with --resume"
            elif (folder / "config.json").is_file():
                said += "; no checkpoint is whole yet: the run begins anew with --resume"
        raise DataError(said) from error


@dataclasses.dataclass
class _Learner:
    """The loop's surroundings, fixed for a run."""

    parts: setup.Parts
    graph: Any
    data: Batches
    supply: Supply
    mender: Mender | None
    log: Any
    checkpoints: Any
    start_params: Any
    stop: StopRequest
    lease: Lease | None
    console: Any

    def __post_init__(self):
        config, parts = self.parts.config, self.parts
        self.evaluator = evaluation_explorer(parts, self.graph)
        self.questions = parts.task.evaluation(config.evaluation.questions) if config.evaluation.questions else []
        self.scores: dict[str, float] = {}  # of the newest evaluation
        self.discarded = 0

    def learn(self, state: states.TrainState, step_fn: Callable) -> states.TrainState:
        """Steps from where the state stands to the end of the run."""
        config, steps = self.parts.config, self.parts.config.training.steps
        first = int(state.step)
        # KL penalties and their like are to the policy that the run started from.
        asked = {"ref_logprobs"} & self.parts.objective.requires - set(config.objective.stored_fields)
        reference = self.start_params if asked else None
        # All that a step takes is on the devices before it is called: the guard says if anything is not.
        key = run_key(config.seed, Purpose.SHAPE)
        given = (self.parts.objective, np.float32(config.sampling.temperature), jax.random.key_data(key))
        objective, temperature, key_data = jax.tree.map(lambda x: processes.put(np.asarray(x), meshes.replicated(self.parts.mesh)), given)
        key = jax.random.wrap_key_data(key_data, impl=jax.random.key_impl(key))
        progress = reporting.TrainingProgress(
            steps, start_step=first, description="train", console=self.console, enabled=processes.is_first()
        )
        with progress as bar, Ahead(self._prepared, lambda step: step < steps and self.data.ready(step)) as ahead:
            if first == 0:
                self._evaluate(state, 0, bar)
            pending = PendingMetrics(self.log, time.monotonic(), bar.update, warn=self._warn)
            for step in range(first, steps):
                groups, batch = self._data_of(step, state, ahead, bar, pending)
                if step == first:
                    bar.phase("compiling the train step")
                with jax.transfer_guard("disallow"):
                    state, metrics = step_fn(state, batch, objective, temperature, key, reference, self.parts.frozen)
                ahead.begin(step + 1)
                # The previous step's metrics are read now, while this step computes: nothing waits for the device.
                pending.swap(step + 1, metrics, self._origin(step) | verdict_scalars(groups))
                done = step + 1
                evaluates = done == steps or (config.evaluation.every and done % config.evaluation.every == 0)
                saves = done == steps or done % config.checkpoint.every == 0 or (evaluates and config.checkpoint.best > 0)
                if evaluates:
                    pending.swap(done, None)
                    self._evaluate(state, done, bar)
                    pending.clock = time.monotonic()
                if saves:
                    self._publish(state, pending, metrics=self.scores if evaluates else None)
                self._stop_if_asked(state, pending)
        if isinstance(self.data, FreeBatches):
            self.console.print(f"discarded {self.discarded} groups that were too old for their step")
        return state

    def _warn(self, text: str) -> None:
        self.console.print(f"warning  {text}", style="yellow", markup=False)

    def _data_of(
        self, step: int, state: states.TrainState, ahead: Ahead[Any], bar: Any, pending: PendingMetrics
    ) -> tuple[list[rollouts.Group], PackedBatch]:
        """A step's groups and batch, once they are there; what is damaged of the run's own data is put back first."""
        between, publish = (partial(act, state, pending) for act in (self._stop_if_asked, self._publish))
        while True:
            ahead.settle()
            try:
                self.supply.before(state, step, bar, between, publish)
                return ahead.take(step)
            except (rollouts.CorruptRecord, rollouts.CorruptShard) as error:
                if self.mender is None:
                    raise
                self.mender(error, state)
            except DataError:
                pending.swap(step, None)  # a policy that is not finite samples nothing that could be stored: then the step before says why
                raise

    def _prepared(self, step: int) -> tuple[list[rollouts.Group], PackedBatch]:
        """A step's groups, and as arrays on the devices."""
        groups = self.data.groups(step)
        version = step if self.parts.config.samples else None  # another run's data counts another policy's versions
        return groups, place(
            groups, self.parts.shape, self.parts.objective, self.parts.mesh, version, self.parts.config.objective.stored_fields
        )

    def _stop_if_asked(self, state: states.TrainState, pending: PendingMetrics) -> None:
        """Between two steps, or two data sets of one step: saves the state and ends the run if a signal asked for it."""
        if self.stop.agreed():
            self._publish(state, pending, wait=True)
            raise self.stop.stopped(f"at step {int(state.step)}, which is saved: start it again to go on (`grre train` with --resume)")

    def _publish(self, state: states.TrainState, pending: PendingMetrics, **options: Any) -> None:
        """Saves a checkpoint, which others may sample with.

        Raises:
            DataError: another learner has taken the run over, or it cannot be written; in all processes.
        """
        # The rows come first: a run killed after the checkpoint resumes beyond this step, and would not write them again.
        pending.swap(int(state.step), None)
        processes.on_first(self.lease.check if self.lease else lambda: None)
        self.checkpoints.save(state, **options)

    def _origin(self, step: int) -> dict[str, float]:
        """What a step's row says of its data."""
        scalars = age_scalars(self.data.ages(step))
        if isinstance(self.data, FreeBatches):
            scalars["discarded"] = self.data.discarded(step)
            self.discarded += scalars["discarded"]
        return scalars

    def _evaluate(self, state: states.TrainState, step: int, bar: Any) -> None:
        if self.questions:
            bar.phase("evaluating" if step else "compiling, evaluating")
            scalars = evaluate(self.evaluator, *map(self.parts.full, (state.params, self.start_params)), self.questions, step=step)
            self.log.write("eval", step, scalars)
            require_best(self.parts.config, scalars)
            self.scores = scalars
            bar.evaluated(step, scalars)
