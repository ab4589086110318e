"""Two real processes of four devices each on loopback: the same numbers as one process, and no
process left waiting for one that is gone.
"""

import re
import signal
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from grre_jax import rollouts, tasks
from grre_jax.cli.entry import main

from ..run_processes import CONFIG, finish, groups, kill_all, rows, start, wait_for_step


def start_two(
    config: Path, run: Path, *more: str, devices: int = 4, **variables: str
) -> list[subprocess.Popen]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = ("--mesh.fsdp", "2", "--mesh.tensor", "2", "--coordinator", address)
    common += (*more, "--num-processes", "2", "--process-id")
    return [start(config, run, *common, str(i), devices=devices, **variables) for i in range(2)]


def kill(processes: list[subprocess.Popen], number: int) -> None:
    """Kills one of two; the other says so and ends too."""
    other = 1 - number
    processes[number].kill()
    _, errors = processes[other].communicate()
    assert processes[other].returncode in (1, -signal.SIGABRT)
    assert re.search("lost another process.*--resume|another task died", errors)
    processes[number].communicate()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("two") / "small.py"
    file.write_text(CONFIG)
    return file


@pytest.fixture(scope="module")
def first(config):
    """A run that left a trained model and its rollouts: a reward now and then, so that there is
    something to learn from.
    """
    run = config.parent / "model"
    finish(start(config, run, "--checkpoint.export", "true", "--evaluation.questions", "0"))
    return run


@pytest.fixture(scope="module")
def started(first):
    """What runs that start from that model have in common."""
    return "--model.path", str(first / "model"), "--warm_start.steps", "0"


@pytest.fixture(scope="module")
def alone(config, started):
    finish(start(config, config.parent / "alone", *started))
    return config.parent / "alone"


@pytest.fixture(scope="module")
def together(config, started):
    said = finish(
        *start_two(config, config.parent / "together", *started, "--checkpoint.export", "true")
    )
    return config.parent / "together", said


@pytest.mark.slow
def test_they_sample_verify_and_seal_what_one_process_does(alone, together):
    run, _ = together
    expected, found = groups(alone), groups(run)
    assert found.keys() == expected.keys() and len(found) == 80
    for (version, position), group in expected.items():
        other = found[version, position]
        if version == 0:  # later policies differ by what rounding has made of it
            assert (other.texts, other.group_id) == (group.texts, group.group_id)
            assert other.rewards.tolist() == group.rewards.tolist()
            assert other.behavior_logprobs == pytest.approx(group.behavior_logprobs, abs=1e-5)
    assert sum(group.rewards.sum() for group in expected.values()) > 10
    entries = rollouts.read(run / "rollouts").datasets
    assert {entry.writer for entry in entries} == {"explorer-0", "explorer-1"}
    assert {entry.groups for entry in entries} == {2}
    assert rollouts.verify(run / "rollouts").ok


def write_rollouts(folder: Path) -> None:
    """Twelve groups that anyone may have drawn."""
    task = tasks.build("arithmetic", operands=2)
    draw = np.random.default_rng(0)
    made = [
        rollouts.Group(
            group_id=question.question_id,
            prompt=question.prompt,
            prompt_tokens=task.tokenizer.encode_prompt(question),
            texts=[""] * 4,
            lengths=[3] * 4,
            tokens=draw.integers(0, 10, 12),
            rewards=draw.permutation([0, 0, 1, 1]),
            behavior_logprobs=np.full(12, -2.5),
        )
        for question in task.questions_at(range(12))
    ]
    rollouts.write(folder, made, writer="test")


@pytest.mark.distributed
def test_they_learn_what_one_process_does_from_the_same_shards(config, tmp_path, no_reports):
    write_rollouts(tmp_path / "rollouts")
    common = ("--data.path", str(tmp_path / "rollouts"), "--training.steps", "4")
    common += ("--warm-start.steps", "0", "--evaluation.questions", "0")
    processes = start_two(config, tmp_path / "two", *common, devices=2, JAX_LOG_COMPILES="1")
    assert main(["train", str(config), "--run-dir", str(tmp_path / "one"), *common]) == 0
    said = finish(*processes)
    # The layout that a step leaves is the one that it began with.
    assert [text.count("Compiling jit(train_step)") for text in said] == [1, 1]
    expected, found = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert len(expected) == 4 and found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key]["loss"] == pytest.approx(row["loss"], abs=1e-5)
        assert found[key]["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-3, abs=1e-6)
    assert len({row["loss"] for row in expected.values()}) == 4  # something was learned from


@pytest.mark.slow
def test_stopped_killed_and_resumed(config, started, together, tmp_path):
    """One of the two is asked to stop, then one is killed, then the other, which holds what they
    agree by; one process alone brings the run to its end.
    """
    run = tmp_path / "run"
    processes = start_two(config, run, *started)
    wait_for_step(processes, run, 2)
    processes[1].send_signal(signal.SIGTERM)  # one of them is asked; both stop, at one step
    said = finish(*processes, status=128 + signal.SIGTERM)
    steps = [int(text.split("stopped by SIGTERM at step ")[1].split(",")[0]) for text in said]
    assert steps[0] == steps[1] >= 2 and (run / "checkpoints" / str(steps[0])).is_dir()

    processes = start_two(config, run, *started, "--resume")
    wait_for_step(processes, run, 6)
    kill(processes, 1)
    processes = start_two(config, run, *started, "--resume")
    wait_for_step(processes, run, 14)
    kill(processes, 0)
    finish(start(config, run, *started, "--resume"))

    expected, found = rows(together[0]), rows(run)
    assert found.keys() == expected.keys() and groups(run) == groups(
        together[0]
    )  # two processes had sampled it all by step 14
    # To the checkpoint before the one that the last kill may have interrupted: two processes, as if
    # nothing had been.
    for step in range(1, 9):
        assert found["train", step] == expected["train", step]
    for step in range(9, 21):
        loss = expected["train", step]["loss"]
        assert found["train", step]["loss"] == pytest.approx(loss, abs=1e-4)
