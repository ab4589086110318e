"""Runs whose folder is in an object store, as processes that are killed: moto's S3 server on
loopback. Each process has a cache folder of its own, as on machines apart.
"""

import itertools
import signal
import socket
import time

import pytest

from grre_jax import rollouts
from grre_jax.cli import entry
from grre_jax.storage.store_path import StorePath
from grre_jax.training.checkpoints.contents import listed

from ...run_processes import CONFIG, bits, finish, kill_all, log, start

pytestmark = pytest.mark.slow
MACHINES = itertools.count()
SETTINGS = (
    "--training.steps 30 --regime.sync_interval 4 --checkpoint.every 5 --checkpoint.keep 2".split()
)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(the configuration's file, a run of it on a disk)."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "small.py").write_text(CONFIG)
    finish(start(folder / "small.py", folder / "run", *SETTINGS))
    return folder / "small.py", folder / "run"


def begin(config, url, tmp_path, *more, command="train"):
    return start(
        config,
        url,
        *SETTINGS,
        *more,
        command=command,
        report=True,
        GRRE_CACHE=str(tmp_path / f"machine{next(MACHINES)}"),
    )


def wait_for_checkpoint(run, step, *processes):
    while step not in listed(run / "checkpoints"):
        if any(process.poll() is not None for process in processes):
            kill_all()
            pytest.fail(f"no checkpoint {step}: {[process.communicate() for process in processes]}")
        time.sleep(0.02)


def assert_same_run(run, expected):
    assert log(run) == log(expected) and bits(run) == bits(expected)
    assert list(rollouts.read(run / "rollouts")) == list(rollouts.read(expected / "rollouts"))
    assert rollouts.verify(run / "rollouts").ok


def test_killed_and_resumed_elsewhere(undisturbed, store, tmp_path):
    config, expected = undisturbed
    run = StorePath(f"s3://{store.bucket}/run")
    process = begin(config, str(run), tmp_path)
    wait_for_checkpoint(run, 10, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (run / "checkpoints" / "12-halfdone" / "params" / "d").write_text("cut short")
    (said,) = finish(begin(config, str(run), tmp_path, "--resume"))
    assert "watching for 30 s" in said and "Traceback" not in said
    assert_same_run(run, expected)
    folders = {path.name for path in (run / "checkpoints").iterdir()}
    assert {name.split("-")[0].removesuffix(".json") for name in folders} == {
        "0",
        "25",
        "30",
    } and len(folders) == 6
    for words in (
        ["report", run],
        ["evaluate", run, "--questions", "4"],
        ["export", run, tmp_path / "model"],
    ):
        assert entry.main([*map(str, words)]) == 0
    assert (run / "evaluation.json").is_file() and (tmp_path / "model/config.json").is_file()


def test_roles_in_processes(undisturbed, store, tmp_path):
    config, expected = undisturbed
    run = StorePath(f"s3://{store.bucket}/roles")
    words = {
        name: f"--explorer-name {name} --explorers 2 --index {i}".split()
        for i, name in enumerate("ab")
    }
    explorers = [
        begin(config, str(run), tmp_path, *words[name], command="explore") for name in "ab"
    ]
    learner = begin(config, str(run), tmp_path, command="learn")
    wait_for_checkpoint(run, 8, learner, *explorers)
    explorers[0].send_signal(signal.SIGKILL)
    learner.send_signal(signal.SIGKILL)
    explorers[0].communicate(), learner.communicate()
    again = begin(config, str(run), tmp_path, *words["a"], command="explore")
    finish(begin(config, str(run), tmp_path, command="learn"), again, explorers[1])
    assert log(run) == log(expected) and bits(run) == bits(expected)
    found = {
        (int(group.policy_version[0]), group.position): group
        for group in rollouts.read(run / "rollouts")
    }
    assert found == {
        (int(group.policy_version[0]), group.position): group
        for group in rollouts.read(expected / "rollouts")
    }


def test_two_processes(undisturbed, store, tmp_path):
    """They share a local disk; one process goes on from what two have written."""
    config, expected = undisturbed
    run = StorePath(f"s3://{store.bucket}/pods")

    def pair(*more):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        words = (*SETTINGS, "--mesh.fsdp", "2", *more)
        words += (*f"--coordinator {address} --num-processes 2 --process-id".split(),)
        return [
            start(config, str(run), *words, str(i), GRRE_CACHE=str(tmp_path / "shared"))
            for i in range(2)
        ]

    # A policy that has ended samples nothing for later steps: of the regime's intervals of four
    # none is begun at 12 or 20.
    finish(*pair("--training.steps", "12"))
    assert listed(run / "checkpoints") == [0, 10, 12]
    finish(*pair("--training.steps", "20", "--resume"))
    finish(begin(config, str(run), tmp_path, "--resume"))
    # Those that end early evaluate at their ends too.
    steps, wanted = (
        [(row["kind"], row["step"]) for row in log(folder) if row["kind"] != "eval"]
        for folder in (run, expected)
    )
    assert steps == wanted
    assert rollouts.verify(run / "rollouts").ok and len(rollouts.read(run / "rollouts")) == 120
