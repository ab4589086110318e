"""Two real processes of four devices each on loopback: the same numbers as one process, and no process left waiting for one that is gone."""

import json
import os
import signal
import socket
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
        name="small", objective=ObjectiveConfig("rec_oneside_nois"), regime=Regime(sync_interval=10),
        model=ModelSource(hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8),
        task=TaskConfig("arithmetic", {"operands": 2}),
        sampling=SamplingConfig(num_samples=4, max_prompt_tokens=4, max_new_tokens=3, prompts_per_call=4),
        training=TrainingConfig(steps=20, groups_per_step=4), optimizer=OptimizerConfig(learning_rate=1e-2),
        warm_start=WarmStartConfig(steps=20, demonstrations=128, batch_size=16, optimizer=OptimizerConfig(learning_rate=3e-2)),
        evaluation=EvaluationConfig(every=0, questions=4, num_samples=4),
        checkpoint=CheckpointConfig(every=4), logging=LoggingConfig(tensorboard=False))
"""
CLOCKED = ("time", "elapsed", "tokens_per_second")
STARTED: list[subprocess.Popen] = []
MESH = ("--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2")


def start(arguments: list[str], devices: int) -> subprocess.Popen:
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "grre_jax", "train", *arguments]
    root = Path(__file__).resolve().parents[2]
    STARTED.append(subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return STARTED[-1]


def one(config: Path, run: Path, *more: str) -> None:
    process = start([str(config), "--run-dir", str(run), *more], devices=1)
    assert process.wait(timeout=300) == 0, process.communicate()


def start_two(config: Path, run: Path, *more: str) -> list[subprocess.Popen]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = [str(config), "--run-dir", str(run), *more, *MESH, "--coordinator", address, "--num-processes", "2"]
    return [start([*common, "--process-id", str(i)], devices=4) for i in range(2)]


def finish(processes: list[subprocess.Popen], status: int = 0) -> list[str]:
    said = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [status] * len(processes), "\n".join(
        text[-3000:] for pair in said for text in pair
    )
    return [output + errors for output, errors in said]


def rows(run: Path) -> dict:
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        found[row["kind"], row["step"]] = {name: value for name, value in row.items() if name not in CLOCKED}
    return found


def groups(run: Path) -> dict:
    """A run's groups by the policy version that sampled them and their place in the prompt stream; every one is there once."""
    found = {(int(group.policy_version[0]), group.position): group for group in rollouts.read(run / "rollouts")}
    assert len(found) == len(rollouts.read(run / "rollouts"))
    return found


def wait_for_step(processes: list[subprocess.Popen], run: Path, step: int) -> None:
    log, wanted = run / "metrics.jsonl", f'"step": {step}, "kind": "train"'
    until = time.monotonic() + 240
    while not (log.exists() and wanted in log.read_text()):
        if time.monotonic() > until or any(process.poll() is not None for process in processes):
            for process in processes:
                process.kill()
            pytest.fail(f"no step {step}: {[process.communicate() for process in processes]}")
        time.sleep(0.02)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    for process in STARTED:  # of a test that failed
        process.kill()


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("two") / "small.py"
    file.write_text(CONFIG)
    return file


@pytest.fixture(scope="module")
def started(config):
    """What runs that start from the same trained model have in common: a reward now and then, so that there is something to learn from."""
    run = config.parent / "model"
    one(config, run, "--training.steps", "1", "--checkpoint.export", "true", "--evaluation.questions", "0")
    return "--model.path", str(run / "model"), "--warm_start.steps", "0"


@pytest.fixture(scope="module")
def alone(config, started):
    one(config, config.parent / "alone", *started)
    return config.parent / "alone"


@pytest.fixture(scope="module")
def together(config, started):
    said = finish(start_two(config, config.parent / "together", *started, "--checkpoint.export", "true"))
    return config.parent / "together", said


def test_they_sample_verify_and_seal_what_one_process_does(alone, together):
    run, _ = together
    expected, found = groups(alone), groups(run)
    assert found.keys() == expected.keys() and len(found) == 80
    for (version, position), group in expected.items():
        other = found[version, position]
        if version == 0:  # later policies differ by what rounding has made of it
            assert (other.texts, other.rewards.tolist(), other.group_id) == (group.texts, group.rewards.tolist(), group.group_id)
            assert other.behavior_logprobs == pytest.approx(group.behavior_logprobs, abs=1e-5)
    assert sum(group.rewards.sum() for group in expected.values()) > 10
    entries = rollouts.read(run / "rollouts").datasets
    assert {entry.writer for entry in entries} == {"explorer-0", "explorer-1"} and all(entry.groups == 20 for entry in entries)
    assert rollouts.verify(run / "rollouts").ok


def test_they_evaluate_and_record_together(alone, together):
    run, said = together
    expected, found = rows(alone), rows(run)
    assert found.keys() == expected.keys()
    for (kind, step), row in expected.items():
        names = ("accuracy", "response_length", "kl_to_start") if kind == "eval" else ("loss", "reward")
        if step <= 10:
            assert [found[kind, step][name] for name in names] == pytest.approx([row[name] for name in names], abs=1e-4)
    assert "devices    8 x cpu" in said[0] and "train 20/20" in said[0]
    assert "devices" not in said[1] and "train" not in said[1] and "curves" not in said[1]
    assert models.fingerprint(models.load(run / "model")) != models.fingerprint(models.load(alone.parent / "model" / "model"))


def test_they_learn_what_one_process_does_from_the_same_shards(config, started, alone, tmp_path):
    common = (*started, "--data.path", str(alone / "rollouts"), "--evaluation.questions", "0")
    one(config, tmp_path / "one", *common)
    finish(start_two(config, tmp_path / "two", *common))
    expected, found = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert len(expected) == 20 and found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key]["loss"] == pytest.approx(row["loss"], abs=1e-5)
        assert found[key]["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-3, abs=1e-6)
    assert len({row["loss"] for row in expected.values()}) > 10  # something was learned from


def test_stopped_killed_and_resumed(config, started, together, tmp_path):
    run = tmp_path / "run"
    processes = start_two(config, run, *started)
    wait_for_step(processes, run, 2)
    processes[1].send_signal(signal.SIGTERM)  # one of them is asked; both stop, at one step
    said = finish(processes, status=128 + signal.SIGTERM)
    steps = [int(text.split("stopped by SIGTERM at step ")[1].split(",")[0]) for text in said]
    assert steps[0] == steps[1] >= 2 and (run / "checkpoints" / str(steps[0])).is_dir()

    processes = start_two(config, run, *started, "--resume")
    wait_for_step(processes, run, 10)
    processes[1].kill()
    since = time.monotonic()
    _, errors = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 1 and time.monotonic() - since < 60
    last = errors.strip().splitlines()[-1]
    assert last.startswith("grre: process 0 of 2 lost another process of the run") and "--resume" in last
    processes[1].communicate()

    finish(start_two(config, run, *started, "--resume"))
    expected, _ = together
    assert rows(run) == rows(expected) and groups(run) == groups(expected)


def test_the_coordinator_is_killed_and_one_process_goes_on(config, started, together, tmp_path):
    run = tmp_path / "run"
    processes = start_two(config, run, *started)
    wait_for_step(processes, run, 5)
    processes[0].kill()
    _, errors = processes[1].communicate(timeout=60)
    assert processes[1].returncode == 1
    last = errors.strip().splitlines()[-1]
    assert last.startswith("grre: process 1 of 2 lost another process of the run") and "--resume" in last
    processes[0].communicate()

    one(config, run, *started, "--resume")
    expected, found = rows(together[0]), rows(run)
    assert found.keys() == expected.keys()
    for step in range(1, 11):
        assert found["train", step]["loss"] == pytest.approx(expected["train", step]["loss"], abs=1e-4)
