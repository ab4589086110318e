"""A run from beginning to end: warm start, then exploring and learning in turn, with evaluations,
checkpoints and a log.

With cluster.learner.hosts Ray starts its processes on the hosts of a cluster, and restarts them
when one is lost. Ray Train's JaxTrainer joins the processes (`jax.distributed`) and places them, on
the hosts of TPU slices too. All of them are restarted together, and continue from the run's last
checkpoint.
"""

import contextlib
import dataclasses
import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from grre_jax import machine, ray_cluster, reporting, rollouts
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import processes
from grre_jax.rollouts import encoding
from grre_jax.storage import files
from grre_jax.storage.remote import Store, is_url
from grre_jax.tasks.pool import start_judges
from grre_jax.training import build, run_folder
from grre_jax.training.actors.cluster import Explorers
from grre_jax.training.actors.explorer import make_explorer
from grre_jax.training.actors.supply import NewestSupply, Supply
from grre_jax.training.checkpoints import Checkpoints
from grre_jax.training.config.run import Config
from grre_jax.training.config.sections import LearnerConfig
from grre_jax.training.data.batches import Chooser, own_samples, stored_streams
from grre_jax.training.data.plan import Samples
from grre_jax.training.data.sources import open_folders, record_folders, training_contents
from grre_jax.training.learner import Learner
from grre_jax.training.policies import write_model
from grre_jax.training.preflight import check, header
from grre_jax.training.run_folder import RUN_FILE
from grre_jax.training.step import copied, fresh, make_train_step, release
from grre_jax.training.stopping import Stopped, StopRequest
from grre_jax.training.warm_start import warm_start


def train(
    config: Config,
    *,
    resume: bool = False,
    overwrite: bool = False,
    console: Any = None,
) -> Path:
    """Runs a configuration to its end, or resumes it: explores and learns in turn.

    All processes of a run (see `parallel.processes`) call this with the same arguments and take
    the same steps. Each samples and seals its share of the data and holds its share of the arrays.
    The first alone writes the log, the configuration and the report, and prints.

    Args:
        config: the run.
        resume: continue the run in the folder from its last checkpoint.
        overwrite: replace the run in the folder.
        console: a rich console; standard output if None.

    Returns:
        The run's folder, which contains config.json, metrics.jsonl, rollouts/, checkpoints/,
        tensorboard/, plots/ and summary.json; of a URL its mirror, which was copied and removed.

    Raises:
        UsageError: a request that cannot be run, as `build.build` and `run_folder.open_run_folder`
            raise it; another learner works in the folder; or the cluster lacks resources.
        DataError: a file that is missing or damaged.
        Stopped: after SIGTERM or SIGINT, once a checkpoint is saved.
    """
    first = processes.is_first()
    console = console if console and first else make_console(quiet=not first)
    hosts = config.cluster.learner.hosts
    with ray_cluster.connected(config.cluster.address, learner=hosts > 0) as ray:
        if ray:
            ray_cluster.require(ray, config.cluster.needed)
        if hosts:
            _train_on_ray(config, resume=resume, overwrite=overwrite)
        else:
            _run(ray, config, resume, overwrite, console)
    return config.folder


def _run(ray: Any, config: Config, resume: bool, overwrite: bool, console: Any) -> None:
    """Runs a configuration in this process; see `train`."""
    # The stack ends first, so that the last copy to the store has what its callbacks write.
    with run_folder.opened(config.location) as mirrored, contextlib.ExitStack() as stack:
        # ---- checks, before the folder is changed
        folder = config.folder
        parts = build.build(config)
        folders = open_folders(config, resume=resume)
        stored = stored_streams(parts, folders)
        contains = training_contents(parts, folders.values())
        check(parts, contains=contains)
        lines = header(parts, config.location)
        provenance = parts.provenance() | {"contains": sorted(contains), "header": lines}
        # The model's own arrays, so that they exist once: the first step deletes them.
        state = fresh(parts.trained, config.optimizer, parts.mesh)

        # ---- processes and the folder
        encoding.import_libraries()  # before there are threads, which trace or write
        judges: list[Any] = []
        if config.cluster.judges:
            judges = start_judges(ray, config.task, config.seed, config.cluster.judges)
        for judge in judges:
            stack.callback(ray.kill, judge)
        parts.use_judges(judges)
        stack.callback(parts.judge.close)
        explorer = make_explorer(parts)
        if config.cluster.samples and config.samples and processes.is_first():
            explorer = Explorers(ray, parts, judges)
            stack.callback(explorer.close)
        _open_folder(config, provenance, folders, stack, mirrored, resume, overwrite)
        reporting.print_header(lines, console=console)
        samples: Samples | None = None
        needed = None
        if config.samples:
            (folder / "rollouts").mkdir(exist_ok=True)
            samples = own_samples(config)
            if config.cluster.samples and not config.regime.newest:
                # Explorers still sample with the versions that the schedule names.
                needed = samples.needs
        checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint, needed)
        saved = checkpoints.steps if resume else []
        stop = stack.enter_context(StopRequest())
        log = stack.enter_context(_open_log(config, saved, resume))
        if mirrored:
            mirrored.start()

        # ---- the first policy: restored, or warm-started and saved as step 0
        if saved:
            # Deleted before the stored one is read: the devices hold one state at a time.
            state = checkpoints.restore(release(state))
            start_params = checkpoints.restore_params(state.params, 0)
        else:
            if config.warm_start.steps:
                release(state.opt_state)  # the warm start has its own
                warmed = warm_start(parts, state.params, folder, log, stop, console)
                state = fresh(warmed, config.optimizer, parts.mesh)
            checkpoints.save(state)
            # Arrays of their own: the first step donates the state.
            start_params = copied(state.params, parts.mesh)

        # ---- explore and learn
        supply: Supply | None = None
        if samples is not None:
            kind = NewestSupply if config.regime.newest else Supply
            supply = kind(parts, explorer, samples, checkpoints)
            stack.callback(supply.close)
        learner = Learner(
            parts,
            Chooser(samples, stored),
            supply,
            log,
            checkpoints,
            start_params,
            stop,
            console,
        )
        balance = config.training.router_balance
        step = make_train_step(parts.graph, config.optimizer, parts.mesh, balance)
        state = learner.learn(state, step)
        checkpoints.save(state, wait=True)
        checkpoints.close()

        # ---- the exported model and the report
        if config.checkpoint.export:
            model = folder / "model"  # there if a finished run was resumed with more steps
            processes.on_first(lambda: shutil.rmtree(model, ignore_errors=True))
            params = parts.full(state.params)
            write_model(parts, params, model, step=int(state.step), contains=contains)
            console.print(f"model    {config.location}/model")

        def report() -> None:
            log.close()
            reporting.report([folder], console=console)

        processes.on_first(report)


def _open_log(config: Config, saved: list[int], resume: bool) -> reporting.RunLog:
    """Opens the log in the first process; of a resumed run, with the rows up to its last
    checkpoint.
    """
    last = saved[-1] if saved else 0
    warmed = config.warm_start.steps if saved else -1
    # A run that goes on from step 0 evaluates there again; without a checkpoint its warm start is
    # repeated.
    kept_rows = {"train": last, "eval": last or -1, "warm_start": warmed} if resume else None

    def open_() -> reporting.RunLog:
        return reporting.open_log(
            config.folder,
            config.logging,
            resume_steps=kept_rows,
            config=dataclasses.asdict(config),
            name=config.name,
        )

    log = processes.on_first(open_)
    # `on_first` returns None in the other processes, whose rows go nowhere.
    return log or reporting.RunLog()


def _open_folder(
    config: Config,
    provenance: dict[str, Any],
    folders: dict[str, rollouts.RolloutReader],
    stack: contextlib.ExitStack,
    mirrored: run_folder.Mirror | None,
    resume: bool,
    overwrite: bool,
) -> None:
    """Locks the run's folder until `stack` ends, and makes or checks it, in the first process.

    Raises:
        UsageError, DataError: as `run_folder.open_run_folder`, in all processes; another process
            works there; or the processes differ in their configurations.
    """
    processes.require_same(
        config.to_json() + f"{resume=} {overwrite=}", "the configuration or command line"
    )

    def make() -> None:
        # Before the folder is looked at: another learner may be writing or replacing it.
        if not mirrored:  # whose folder is locked already
            stack.enter_context(run_folder.locked(config.folder))
        folder = run_folder.open_run_folder(config, resume=resume, overwrite=overwrite)
        if mirrored and overwrite:
            mirrored.clear()
        files.replace(folder / "provenance.json", json.dumps(provenance, indent=2) + "\n")
        record_folders(folder, folders)

    processes.on_first(make)


# How JAX's processes compute together without accelerators.
ON_CPU = {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}


def _train_on_ray(config: Config, *, resume: bool, overwrite: bool) -> None:
    """Runs a configuration in processes that Ray starts, on the cluster that this one is connected
    to; returns when the run has ended.

    Args:
        config: of the run; `config.cluster.learner` places its processes.
        resume: continue the run in the folder from its last checkpoint.
        overwrite: replace the run in the folder.

    Raises:
        UsageError: as `_run` raises it.
        DataError: the processes were lost more often than `restarts`; or as `_run` raises it.
        Stopped: as `_run` raises it.
    """
    from ray.train import FailureConfig, RunConfig
    from ray.train.v2.api.exceptions import TrainingFailedError
    from ray.train.v2.jax import JaxConfig, JaxTrainer
    from ray.util.queue import Queue

    learner = config.cluster.learner
    scaling = _scaling(learner)
    accelerated = scaling.use_gpu or scaling.use_tpu
    cluster = dataclasses.replace(config.cluster, learner=LearnerConfig())
    # Has the error with which a learner ended for good: not a lost process, the learner would end
    # with it again.
    outcome = Queue(actor_options={"num_cpus": 0})
    job = {
        "config": dataclasses.replace(config, cluster=cluster),
        "resume": resume,
        "overwrite": overwrite,
        "outcome": outcome,
        # The id of an earlier run in the folder: with any other one there, this run has begun.
        "replaced": _run_id(config),
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer = JaxTrainer(
            _work,
            train_loop_config=job,
            # With neither, Ray does not join the processes.
            jax_config=JaxConfig(use_tpu=scaling.use_tpu, use_gpu=not scaling.use_tpu),
            scaling_config=scaling,
            run_config=RunConfig(
                name="learner",
                storage_path=folder,  # nothing is stored there: checkpoints are the run's own
                failure_config=FailureConfig(max_failures=learner.restarts),
                worker_runtime_env={"env_vars": {} if accelerated else ON_CPU},
            ),
        )
        try:
            trainer.fit()
        except TrainingFailedError as failure:
            if outcome.empty():
                raise DataError(
                    "cluster.learner: a process failed or was lost more than"
                    f" {learner.restarts} times ({failure}); continue with --resume"
                ) from failure
    if not outcome.empty():
        raise outcome.get()


def _scaling(learner: LearnerConfig) -> Any:
    """Returns Ray Train's description of the processes."""
    from ray.train import ScalingConfig

    hosts = learner.hosts
    each = {name: n for name, n in learner.each.items() if n}
    if learner.topology:
        from ray.util.tpu import get_tpu_worker_resources

        hosts, of_slice = get_tpu_worker_resources(
            learner.topology, learner.accelerator_type, num_slices=learner.slices
        )
        each = of_slice | each
    return ScalingConfig(
        num_workers=hosts,
        use_gpu=learner.accelerators > 0,
        use_tpu=bool(learner.topology) or "TPU" in learner.resources,
        topology=learner.topology or None,
        accelerator_type=learner.accelerator_type or None,
        resources_per_worker=each,
        placement_strategy="PACK" if learner.topology else "SPREAD",
    )


def _run_id(config: Config) -> str:
    """Returns the id of the run in the run's folder; empty without one."""
    try:
        if is_url(config.location):
            content = Store(config.location).read(RUN_FILE)
        else:
            content = (config.folder / RUN_FILE).read_bytes()
        return json.loads(content).get("id", "")
    except (OSError, ValueError, AttributeError):
        return ""


def _work(job: dict[str, Any]) -> None:
    """Trains in one of the learner's processes."""
    import ray

    outcome = job["outcome"]
    if not outcome.empty():
        return  # the error is reported by the process that started the run
    logging.getLogger().setLevel(logging.WARNING)  # Ray Train prints more
    config = job["config"]
    machine.keep_compiled(config.compiled)
    # An earlier start of these processes began the run.
    begun = processes.is_first() and _run_id(config) not in ("", job["replaced"])
    # The processes must agree, and the first one makes the folder.
    resume = job["resume"] or bool(processes.gather_ints(int(begun))[0])
    console = make_console(quiet=not processes.is_first())
    try:
        # A restarted learner goes on with its run: it must not be overwritten a second time.
        _run(ray, config, resume, job["overwrite"] and not resume, console)
    except (UsageError, DataError, Stopped) as error:
        outcome.put(error)
        raise
