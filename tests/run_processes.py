"""Training runs as processes of their own: started, watched, ended, and read back."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.storage.remote import Store
from grre_jax.training import build, run_folder, step as state
from grre_jax.training.checkpoints import Checkpoints
from grre_jax.training.policies import load_config

CONFIG = """
from grre_jax.training.config.run import *
from grre_jax.training.data.plan import Regime
from grre_jax.training.optimizer import OptimizerConfig

def config():
    return Config(
        name="small", objective=ObjectiveConfig("rec_oneside_nois"), regime=Regime(sync_interval=10),
        model=ModelSource(hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8),
        task=TaskConfig("arithmetic", {"operands": 2}),
        sampling=SamplingConfig(group_size=4, max_prompt_tokens=4, max_new_tokens=3, prompts_per_call=4),
        training=TrainingConfig(steps=20, prompts_per_step=4), optimizer=OptimizerConfig(learning_rate=1e-2),
        warm_start=WarmStartConfig(steps=20, demonstrations=128, batch_size=16, optimizer=OptimizerConfig(learning_rate=3e-2)),
        evaluation=EvaluationConfig(every=0, questions=4, num_samples=4, greedy=False),
        checkpoint=CheckpointConfig(every=4), logging=LoggingConfig(tensorboard=False))
"""
CLOCKED = ("time", "elapsed", "tokens_per_second", "seconds_")
ROOT = Path(__file__).resolve().parents[1]
STARTED: list[subprocess.Popen] = []


def entered(url):
    """Steps of the checkpoints that are entered in an object store."""
    return sorted(run_folder._entered(Store(url)))


# `python -m grre_jax`, without the report at the end of a run: a quarter of a short one's time.
WITHOUT_REPORT = """
import sys
from grre_jax import reporting
from grre_jax.cli.entry import main
reporting.report = lambda *_, **__: None
sys.exit(main())
"""


def quiet() -> Console:
    """A console that prints nowhere."""
    return Console(file=io.StringIO(), width=200)


def written(config) -> Path:
    """A file that gives this configuration, beside the folder of its run."""
    file = Path(config.run_dir).with_suffix(".py")
    file.write_text(
        "import json\n"
        "from grre_jax.training.config.run import from_dict\n\n"
        "def config():\n"
        f"    return from_dict(json.loads({config.to_json()!r}))\n"
    )
    return file


def start(
    config: Path,
    run: Path,
    *more: str,
    devices: int = 1,
    command: str = "train",
    **variables: str,
) -> subprocess.Popen:
    """A process that trains, or plays another role of a run, on so many simulated devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"} | variables
    program = [sys.executable, "-c", WITHOUT_REPORT, command, str(config)]
    STARTED.append(
        subprocess.Popen(
            [*program, "--run-dir", str(run), *more],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    return STARTED[-1]


def finish(*processes: subprocess.Popen, status: int = 0) -> list[str]:
    """What each printed, once all have ended with this status."""
    said = ["".join(process.communicate(timeout=1800)) for process in processes]
    assert [process.returncode for process in processes] == [status] * len(processes), "\n".join(
        text[-3000:] for text in said
    )
    return said


def wait_for_step(processes: list[subprocess.Popen], run: Path, step: int) -> None:
    """Returns when the run's log has the step."""
    log, wanted = run / "metrics.jsonl", f'"step": {step}, "kind": "train"'
    while not (log.exists() and wanted in log.read_text()):
        if any(process.poll() is not None for process in processes):
            kill_all()
            pytest.fail(f"no step {step}: {[process.communicate() for process in processes]}")
        time.sleep(0.01)


def kill_all() -> None:
    """Ends what a test that failed has left running."""
    for process in STARTED:
        process.kill()


def children(name: str, process: int) -> list[int]:
    """Ids of the processes of a name that clusters of a process have, in order."""
    parents = {}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        parents[int(folder.name)] = int(status[1])
        if command.startswith(name):
            found.append(int(folder.name))
    return sorted(number for number in found if parents.get(parents[number]) == process)


def contents(folder) -> dict[str, bytes]:
    """What the files below a folder hold, by their name in it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def log(run) -> list[dict]:
    """The log's rows in order, without what a clock says."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if not name.startswith(CLOCKED)}
        for row in found
    ]


def rows(run: Path) -> dict:
    """The log by (kind, step)."""
    return {(row["kind"], row["step"]): row for row in log(run)}


def groups(run: Path) -> dict:
    """A run's groups by the policy version that sampled them and their place in the prompt
    stream; every one is there once.
    """
    reader = rollouts.read(run / "rollouts")
    found = {(int(group.policy_version[0]), group.position): group for group in reader}
    assert len(found) == len(reader)
    return found


def first_state(parts):
    """The state of a run before its first step, with arrays of its own."""
    params = state.copied(parts.trained, parts.mesh)
    return state.fresh(params, parts.config.optimizer, parts.mesh)


def restored(folder, **fields):
    """The state of the newest checkpoint.

    `fields` replace those of the run's configuration, its mesh say.
    """
    parts = build.build(dataclasses.replace(load_config(folder), **fields))
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    found = checkpoints.restore(first_state(parts))
    checkpoints.close()
    return found


def bits(folder, **fields):
    """Every array of a run's newest checkpoint, whole: parameters, optimiser, step."""
    leaves = jax.tree.leaves(restored(folder, **fields))
    return [np.asarray(leaf).tobytes() for leaf in leaves]
