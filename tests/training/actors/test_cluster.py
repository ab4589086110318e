"""Explorers on a Ray cluster on loopback: a run with them equals one without, whoever dies."""

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from grre_jax import config as c
from grre_jax import rollouts
from grre_jax.domains import ConfigError
from grre_jax.errors import UsageError
from grre_jax.training import loop
from grre_jax.training.config.overrides import override

from ...run_processes import bits, log, start, wait_for_step, written

pytest.importorskip("ray", reason="needs the extra cluster")
pytestmark = pytest.mark.usefixtures("no_reports")


def explorers():
    """Ids of the processes of explorers that this process's cluster has."""
    names = {}
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            names[int(folder.name)] = (folder / "cmdline").read_text()
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    raylets = {number for number, parent in parents.items() if parent == os.getpid()}
    return sorted(
        number
        for number, name in names.items()
        if name.startswith("ray::Worker") and parents.get(number) in raylets
    )


@pytest.fixture
def killed():
    """Kills an explorer a second after two have begun; gives the ids of those that were killed."""
    ids = []
    end = threading.Event()

    def kill():
        while not end.wait(0.05):
            if len(found := explorers()) > 1:
                time.sleep(1)
                os.kill(found[0], signal.SIGKILL)
                ids.append(found[0])
                return

    thread = threading.Thread(target=kill)
    thread.start()
    yield ids
    end.set()
    thread.join()


def groups(folder):
    return {(group.position, group.attempt): group for group in rollouts.read(folder / "rollouts")}


def test_a_run_with_explorers_equals_one_without(make_config, tiny_run, tmp_path, killed):
    cluster = c.ClusterConfig("local", most=2, cpus=0.5)
    config = make_config(tmp_path / "run", cluster=cluster)
    loop.train(config)
    assert killed
    assert groups(tmp_path / "run") == groups(tiny_run)
    assert log(tmp_path / "run") == log(tiny_run)
    assert bits(tmp_path / "run") == bits(tiny_run)


@pytest.mark.slow
def test_a_learner_that_is_killed_goes_on_with_another_number_of_explorers(
    make_config, tiny_run, tmp_path
):
    config = make_config(tmp_path / "run")
    words = ["--cluster.address", "local", "--cluster.cpus", "0.5", "--cluster.most"]
    process = start(written(config), tmp_path / "run", *words, "2")
    wait_for_step([process], tmp_path / "run", 3)
    process.kill()
    process.wait()
    loop.train(override(config, [*words, "1"]), resume=True)
    assert groups(tmp_path / "run") == groups(tiny_run)
    assert log(tmp_path / "run") == log(tiny_run)
    assert bits(tmp_path / "run") == bits(tiny_run)


@pytest.mark.slow
def test_trajectories_of_explorers_are_those_of_the_learner(make_config, tmp_path):
    words = "--task.name calculator --task.options.operands 2 --task.options.digits 1"
    words += " --sampling.max_new_tokens 12 --sampling.max_turns 3 --sampling.max_turn_tokens 5"
    words += " --training.steps 4 --evaluation.questions 0"
    alone = make_config(tmp_path / "alone", words)
    loop.train(alone)
    cluster = c.ClusterConfig("local", most=2, cpus=0.5)
    loop.train(dataclasses.replace(alone, run_dir=str(tmp_path / "run"), cluster=cluster))
    assert groups(tmp_path / "run") == groups(tmp_path / "alone")
    assert bits(tmp_path / "run") == bits(tmp_path / "alone")


SLOW = """
import time
from grre_jax.tasks.datasets.arithmetic import Arithmetic

class Slow(Arithmetic):
    name = "slow"
    batch_rewards = None

    def verify(self, question, completion):
        time.sleep(0.02 * (hash(question.question_id) % 2))
        return super().verify(question, completion)

def build(seed):
    return Slow(operands=2, seed=seed)
"""


def test_the_newest_policy_samples_within_the_bound_and_slow_questions_are_not_left_out(
    make_config, tmp_path
):
    (tmp_path / "slow.py").write_text(SLOW)
    config = make_config(
        tmp_path / "run",
        regime=c.Regime(staleness=3, newest=True),
        task=c.TaskConfig(f"{tmp_path}/slow.py:build"),
        warm_start=c.WarmStartConfig(),
        cluster=c.ClusterConfig("local", most=2, cpus=0.5),
    )
    loop.train(config)
    reader = rollouts.read(tmp_path / "run" / "rollouts")
    assert sorted(reader.index) == list(range(32))  # all questions, of eight steps
    for position, (number,) in reader.index.items():
        step = position // 4
        assert (
            reader[number].policy_version.tolist() == [reader.locate(number)[0].policy_version] * 4
        )
        assert reader.locate(number)[0].policy_version in config.regime.window(step, 8)


def test_what_a_cluster_lacks_is_named(make_config, tmp_path):
    cluster = c.ClusterConfig("local", resources={"TPU": 4})
    with pytest.raises(UsageError, match="cluster: .*4 TPU"):
        loop.train(make_config(tmp_path / "run", cluster=cluster))
    with pytest.raises(UsageError, match="cluster.address: '127.0.0.1:1'"):
        loop.train(make_config(tmp_path / "run", cluster=c.ClusterConfig("127.0.0.1:1")))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"least": 0}, "least"),
        ({"least": 3, "most": 2}, "most"),
        ({"cpus": -1}, "cpus"),
        ({"resources": {"TPU": "4"}}, "resources.TPU"),
    ],
)
def test_wrong_numbers_of_explorers(fields, name):
    with pytest.raises(ConfigError) as error:
        c.ClusterConfig("local", **fields)
    assert error.value.field == name


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cluster": c.ClusterConfig("auto"), "data": c.DataConfig(dynamic_sampling=1)},
        {"cluster": c.ClusterConfig("auto"), "mesh": c.MeshConfig(sampler=c.SamplerMeshConfig(1))},
    ],
)
def test_what_explorers_do_not_go_with_is_refused(fields):
    with pytest.raises(ConfigError, match="regime.newest|cluster.address"):
        c.Config("x", regime=c.Regime(newest=True), **fields)
