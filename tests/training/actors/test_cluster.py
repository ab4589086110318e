"""Explorers on a Ray cluster on loopback: a run with them equals one without, whoever dies."""

import contextlib
import dataclasses
import os
import signal
import threading
import time

import pytest

from grre_jax import config as c, ray_cluster, rollouts
from grre_jax.errors import UsageError
from grre_jax.reporting import read_metrics
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.pool import ClusterJudges, start_judges
from grre_jax.training import loop

from ...conftest import CALCULATOR
from ...groups import text_group
from ...run_processes import (
    bits,
    children,
    finish,
    groups,
    log,
    start,
    wait_for_step,
    written,
)

pytest.importorskip("ray", reason="needs the extra cluster")
from ...tasks.test_cluster_judges import TASK  # noqa: E402

pytestmark = [pytest.mark.usefixtures("no_reports"), pytest.mark.distributed]
TWO = c.ClusterConfig("local", c.ExplorersConfig(most=2, cpus=0.5))


@contextlib.contextmanager
def killing(name, least, number=signal.SIGKILL, ready=lambda: True):
    """Sends a signal to one of the actors of a name a second after so many have begun and a
    condition holds; gives the ids of those that got it.
    """
    ids = []
    end = threading.Event()

    def kill():
        while not end.wait(0.05):
            if len(found := children(name, os.getpid())) >= least and ready():
                time.sleep(1)
                os.kill(found[0], number)
                ids.append(found[0])
                return

    thread = threading.Thread(target=kill)
    thread.start()
    yield ids
    end.set()
    thread.join()


def require_equal(run, other):
    assert groups(run) == groups(other)
    assert log(run) == log(other)
    assert bits(run) == bits(other)


def test_a_cluster_that_does_not_answer_is_named(make_config, tmp_path):
    with pytest.raises(UsageError, match="cluster.address: '127.0.0.1:1'"):
        loop.train(make_config(tmp_path / "run", cluster=c.ClusterConfig("127.0.0.1:1")))


@pytest.fixture(scope="module")
def local():
    """A cluster of this process, for all that run in it."""
    with ray_cluster.connected("local"):
        yield


def test_what_a_cluster_lacks_is_named(make_config, tmp_path, local):
    cores = os.cpu_count()
    for cluster, lacks in (
        (c.ClusterConfig("local", c.ExplorersConfig(resources={"TPU": 4})), "4 TPU"),
        # Each kind alone would fit.
        (
            c.ClusterConfig("local", c.ExplorersConfig(cpus=cores), judges=cores),
            f"{2 * cores} CPU",
        ),
    ):
        with pytest.raises(UsageError, match=f"cluster: .*{lacks}"):
            loop.train(make_config(tmp_path / "run", cluster=cluster))


def test_limits_and_failures_of_judges_are_those_of_processes(tmp_path, local):
    (tmp_path / "task.py").write_text(TASK)
    config = TaskConfig(f"{tmp_path}/task.py:build", verify_timeout=1.0)
    with ray_cluster.connected("local") as ray:
        judge = ClusterJudges(config, 0, start_judges(ray, config, 0, 1))
        (judged,) = judge([(text_group(0, ["x"], [1]), ["ab", "hang", "raise", "exit", "abc"])])
    assert judged.failures == ["", "timeout", "error", "crash", ""]
    assert judged.rewards[[0, 4]].tolist() == [2, 3]


def test_a_run_with_explorers_equals_one_without(make_config, tiny_run, tmp_path, local):
    with killing("ray::Worker", 2) as killed:
        loop.train(make_config(tmp_path / "run", cluster=TWO))
    assert killed
    require_equal(tmp_path / "run", tiny_run)
    rows = read_metrics(tmp_path / "run")["train"]
    assert sum(row[f"tokens_per_second_explorer_{n}"] for row in rows for n in (0, 1)) > 0
    assert all(row["time_idle_explorer_0"] >= 0 for row in rows)


@pytest.mark.slow
def test_two_hosts_are_restarted_together_and_equal_one_process(make_config, tiny_run, tmp_path):
    words = f"--data.path {tiny_run}/rollouts --warm-start.steps 0 --evaluation.questions 0"
    words += " --training.steps 40 --checkpoint.every 10"
    alone = loop.train(make_config(tmp_path / "alone", words))
    run = tmp_path / "run"
    cluster = c.ClusterConfig("local", learner=c.LearnerConfig(hosts=2, cpus=0.5))
    process = start(written(make_config(run, words, cluster=cluster)), run)
    wait_for_step([process], run, 12)
    os.kill(children("ray::RayTrainWorker", process.pid)[1], signal.SIGKILL)
    finish(process)
    losses, expected = ([row["loss"] for row in log(folder)] for folder in (run, alone))
    assert len(losses) == 40 and losses == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_a_call_that_takes_far_too_long_is_sampled_by_another_explorer(make_config, tmp_path):
    words = "--regime.sync_interval 1 --regime.sync_offset 0 --sampling.prompts_per_call 1"
    words += " --training.steps 120"
    loop.train(make_config(tmp_path / "alone", words))
    config = make_config(tmp_path / "run", words, cluster=TWO)

    def begun():
        file = tmp_path / "run" / "metrics.jsonl"
        return file.exists() and '"step": 4, "kind": "train"' in file.read_text()

    with killing("ray::Worker", 2, signal.SIGSTOP, begun) as stopped:
        loop.train(config)
    assert stopped
    require_equal(tmp_path / "run", tmp_path / "alone")


@pytest.mark.slow
def test_trajectories_with_judges_are_those_of_the_learner(make_config, tmp_path, local):
    words = f"--task.name {CALCULATOR} --task.options.operands 2 --task.options.digits 1"
    words += " --sampling.max_new_tokens 12 --sampling.max_turns 3 --sampling.max_turn_tokens 5"
    words += " --training.steps 4 --evaluation.questions 0"
    alone = loop.train(make_config(tmp_path / "alone", words))
    cluster = dataclasses.replace(TWO, judges=1)
    run = loop.train(make_config(tmp_path / "run", words, cluster=cluster))
    assert groups(run) == groups(alone) and bits(run) == bits(alone)


SLOW = """
import time
import zlib
from grre_jax.tasks.datasets.arithmetic import Arithmetic

class Slow(Arithmetic):
    name = "slow"

    def verify(self, question, completion):
        time.sleep(0.1 if zlib.crc32(question.question_id.encode()) % 2 else 0.005)
        return super().verify(question, completion)

def build(seed):
    return Slow(operands=2, seed=seed)
"""


@pytest.mark.slow
def test_the_newest_policy_samples_within_the_bound_and_slow_questions_are_not_left_out(
    make_config, tmp_path, local
):
    (tmp_path / "slow.py").write_text(SLOW)
    config = make_config(
        tmp_path / "run",
        "--evaluation.questions 0",
        regime=c.Regime(staleness=3, newest=True),
        task=c.TaskConfig(f"{tmp_path}/slow.py:build"),
        warm_start=c.WarmStartConfig(),
        cluster=TWO,
    )
    loop.train(config)
    reader = rollouts.read(tmp_path / "run" / "rollouts")
    assert sorted(reader.index) == list(range(32))  # all questions, of eight steps
    for position, (number,) in reader.index.items():
        step = position // 4
        version = reader.locate(number)[0].policy_version
        assert reader[number].policy_version.tolist() == [version] * 4
        assert version in config.regime.window(step, 8)
