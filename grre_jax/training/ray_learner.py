"""A learner whose processes Ray starts on the hosts of a cluster, and restarts when one is lost.

Ray Train's JaxTrainer joins the processes (`jax.distributed`) and places them, on the hosts of TPU
slices too. All of them are restarted together, and continue from the run's last checkpoint.
"""

import dataclasses
import json
import logging
import tempfile
from collections.abc import Callable
from typing import Any

from grre_jax import machine
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import processes
from grre_jax.storage.remote import Store, is_url
from grre_jax.training.config.run import Config
from grre_jax.training.config.sections import LearnerConfig
from grre_jax.training.run_folder import RUN_FILE
from grre_jax.training.runtime.stopping import Stopped

# How JAX's processes compute together without accelerators.
ON_CPU = {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
Train = Callable[[Any, Config, bool, bool, Any], None]


def train(config: Config, run: Train, *, resume: bool, overwrite: bool) -> None:
    """Runs a configuration in processes that Ray starts, on the cluster that this one is connected
    to; returns when the run has ended.

    Args:
        config: of the run; `config.cluster.learner` places its processes.
        run: trains in one of the processes; gets `ray`, configuration, resume, overwrite and
            console.
        resume: continue the run in the folder from its last checkpoint.
        overwrite: replace the run in the folder.

    Raises:
        UsageError: as `run` raises it.
        DataError: the processes were lost more often than `restarts`; or as `run` raises it.
        Stopped: as `run` raises it.
    """
    from ray.train import FailureConfig, RunConfig
    from ray.train.v2.api.exceptions import TrainingFailedError
    from ray.train.v2.jax import JaxConfig, JaxTrainer
    from ray.util.queue import Queue

    learner = config.cluster.learner
    scaling = _scaling(learner)
    accelerated = scaling.use_gpu or scaling.use_tpu
    here = dataclasses.replace(learner, hosts=0, topology="", accelerator_type="")
    cluster = dataclasses.replace(config.cluster, learner=here)
    # Has the error with which a learner ended for good: not a lost process, the learner would end
    # with it again.
    outcome = Queue(actor_options={"num_cpus": 0})
    job = {
        "run": run,
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
        job["run"](ray, config, resume, job["overwrite"] and not resume, console)
    except (UsageError, DataError, Stopped) as error:
        outcome.put(error)
        raise
