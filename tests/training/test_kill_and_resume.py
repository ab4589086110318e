"""A run that is killed, for real, and resumed: the same numbers as the run that was not, and no shard lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grre_jax import models, rollouts

CONFIG = """
from grre_jax.config import *
from grre_jax.training.regime import Regime
from grre_jax.training.state import OptimizerConfig

def config():
    return Config(
        name="small", objective=ObjectiveConfig("rec_oneside_nois"), regime=Regime(sync_interval=4),
        model=ModelSource(hidden_size=16, intermediate_size=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8),
        task=TaskConfig("arithmetic", {"operands": 2}),
        sampling=SamplingConfig(num_samples=4, max_prompt_tokens=4, max_new_tokens=3, prompts_per_call=4),
        training=TrainingConfig(steps=40, groups_per_step=4), optimizer=OptimizerConfig(learning_rate=1e-2),
        warm_start=WarmStartConfig(steps=20, demonstrations=128, batch_size=16, optimizer=OptimizerConfig(learning_rate=3e-2)),
        evaluation=EvaluationConfig(every=10, questions=12, num_samples=4), checkpoint=CheckpointConfig(every=10, export=True),
        logging=LoggingConfig(tensorboard=False))
"""
CLOCKED = ("time", "elapsed", "tokens_per_second")


def start(config: Path, run: Path, *more: str, flags: str = "", **variables: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "grre_jax", "train", str(config), "--run-dir", str(run), *more]
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"} | variables
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen, status: int = 0) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors
    return output + errors


def rows(run: Path) -> dict:
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        found[row["kind"], row["step"]] = {name: value for name, value in row.items() if name not in CLOCKED}
    return found


def wait_for_step(process: subprocess.Popen, run: Path, step: int) -> None:
    wanted = f'"step": {step}, "kind": "train"'
    until = time.monotonic() + 240
    while time.monotonic() < until:
        if (run / "metrics.jsonl").exists() and wanted in (run / "metrics.jsonl").read_text():
            return
        if process.poll() is not None:
            pytest.fail(f"the run ended before step {step}: {process.communicate()}")
        time.sleep(0.01)
    pytest.fail(f"no step {step} in time")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "small.py").write_text(CONFIG)
    finish(start(folder / "small.py", folder / "run"))
    return folder / "small.py", folder / "run"


def assert_same_run(run: Path, expected: Path) -> None:
    assert rows(run) == rows(expected)
    assert models.fingerprint(models.load(run / "model")) == models.fingerprint(models.load(expected / "model"))
    assert rollouts.verify(run / "rollouts").ok
    assert [group for group in rollouts.read(run / "rollouts")] == [group for group in rollouts.read(expected / "rollouts")]


def test_sigkill_and_resume(undisturbed, tmp_path):
    config, expected = undisturbed
    process = start(config, tmp_path / "run")
    wait_for_step(process, tmp_path / "run", 23)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    sealed = {entry.name for entry in rollouts.read(tmp_path / "run" / "rollouts").datasets}
    finish(start(config, tmp_path / "run", "--resume"))
    assert sealed <= {entry.name for entry in rollouts.read(tmp_path / "run" / "rollouts").datasets}
    assert_same_run(tmp_path / "run", expected)


def test_sigterm_saves_first(undisturbed, tmp_path):
    config, expected = undisturbed
    process = start(config, tmp_path / "run")
    wait_for_step(process, tmp_path / "run", 13)
    process.send_signal(signal.SIGTERM)
    said = finish(process, status=128 + signal.SIGTERM)
    assert "stopped by SIGTERM at step" in said and "--resume" in said and "Traceback" not in said
    step = int(said.split("at step ")[1].split(",")[0])
    assert (tmp_path / "run" / "checkpoints" / str(step)).is_dir() and 13 <= step < 40
    finish(start(config, tmp_path / "run", "--resume"))
    assert_same_run(tmp_path / "run", expected)


@pytest.mark.parametrize("mesh", [(), ("--mesh.fsdp", "2", "--mesh.tensor", "2")], ids=["data", "data-fsdp-tensor"])
def test_eight_devices_learn_the_same_from_the_same_shards(undisturbed, tmp_path, mesh):
    config, source = undisturbed
    common = ("--warm_start.steps", "0", "--data.path", str(source / "rollouts"), "--training.steps", "20", "--evaluation.questions", "0")
    finish(start(config, tmp_path / "one", *common))
    said = finish(start(config, tmp_path / "eight", *common, *mesh, flags="--xla_force_host_platform_device_count=8", JAX_LOG_COMPILES="1"))
    assert said.count("Compiling jit(train_step)") == 1  # the layout that a step leaves is the one that it began with
    one, eight = rows(tmp_path / "one"), rows(tmp_path / "eight")
    assert len(one) == 20 and one.keys() == eight.keys()
    for key, row in one.items():
        assert eight[key]["loss"] == pytest.approx(row["loss"], abs=1e-4)
        assert eight[key]["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-3)


def test_eight_devices_sample_the_same(undisturbed, tmp_path):
    config, source = undisturbed
    common = ("--warm_start.steps", "0", "--model.path", str(source / "model"), "--training.steps", "4", "--evaluation.questions", "0")
    finish(start(config, tmp_path / "one", *common))
    finish(start(config, tmp_path / "eight", *common, flags="--xla_force_host_platform_device_count=8"))
    one, eight = (rollouts.read(tmp_path / name / "rollouts") for name in ("one", "eight"))
    assert len(one) == len(eight) == 16
    assert [group.texts for group in one] == [group.texts for group in eight]
