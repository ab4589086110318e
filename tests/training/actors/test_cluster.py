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
from grre_jax.tasks import cluster_judges
from grre_jax.tasks.rewards import TaskSpec
from grre_jax.training import loop
from grre_jax.training.config.overrides import override

from ...groups import text_group
from ...run_processes import (
    CONFIG,
    bits,
    children,
    finish,
    log,
    rows,
    start,
    wait_for_step,
    written,
)

pytest.importorskip("ray", reason="needs the extra cluster")
from ...tasks.test_cluster_judges import TASK  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_reports")
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


def groups(folder):
    return {(group.position, group.attempt): group for group in rollouts.read(folder / "rollouts")}


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
    spec = TaskSpec(f"{tmp_path}/task.py:build")
    with ray_cluster.connected("local") as ray:
        judge = cluster_judges.ClusterJudges(spec, cluster_judges.start(ray, spec, 1, 1.0), 1.0)
        (judged,) = judge([(text_group(0, ["x"], [1]), ["ab", "hang", "raise", "exit", "abc"])])
    assert judged.failures == ["", "timeout", "error", "crash", ""]
    assert judged.rewards[[0, 4]].tolist() == [2, 3]


@pytest.mark.distributed
def test_a_run_with_explorers_equals_one_without(make_config, tiny_run, tmp_path, local):
    with killing("ray::Worker", 2) as killed:
        loop.train(make_config(tmp_path / "run", cluster=TWO))
    assert killed
    require_equal(tmp_path / "run", tiny_run)
    rows = read_metrics(tmp_path / "run")["train"]
    names = [f"{name}_explorer_{n}" for name in ("tokens_per_second", "time_idle") for n in (0, 1)]
    assert all(row[name] >= 0 for row in rows for name in names)
    assert sum(row[name] for row in rows for name in names[:2]) > 0


@pytest.mark.slow
def test_a_learner_that_is_killed_goes_on_with_another_number_of_explorers(
    make_config, tiny_run, tmp_path
):
    config = make_config(tmp_path / "run")
    words = ["--cluster.address", "local", "--cluster.explorers.cpus", "0.5"]
    words += ["--cluster.explorers.most"]
    process = start(written(config), tmp_path / "run", *words, "2")
    wait_for_step([process], tmp_path / "run", 3)
    process.kill()
    process.wait()
    loop.train(override(config, [*words, "1"]), resume=True)
    require_equal(tmp_path / "run", tiny_run)


@pytest.mark.slow
def test_a_learner_that_ray_started_is_restarted(make_config, tiny_run, tmp_path):
    learner = c.LearnerConfig(hosts=1, cpus=0.5)
    config = make_config(tmp_path / "run", cluster=dataclasses.replace(TWO, learner=learner))
    process = start(written(config), tmp_path / "run")
    wait_for_step([process], tmp_path / "run", 3)
    (worker,) = children("ray::RayTrainWorker", process.pid)
    os.kill(worker, signal.SIGKILL)
    finish(process)
    require_equal(tmp_path / "run", tiny_run)


@pytest.mark.slow
@pytest.mark.parametrize("explorers", [0, 1])
def test_two_hosts_are_restarted_together_and_equal_one_process(explorers, tmp_path):
    (tmp_path / "small.py").write_text(CONFIG)
    first, alone, two = (tmp_path / name for name in ("first", "alone", "two"))
    words = ("--checkpoint.export", "true", "--evaluation.questions", "0")
    finish(start(tmp_path / "small.py", first, *words))
    words = ("--model.path", str(first / "model"), "--warm_start.steps", "0")
    finish(start(tmp_path / "small.py", alone, *words))
    words += ("--cluster.address", "local", "--cluster.explorers.most", str(explorers))
    words += ("--cluster.learner.hosts", "2", "--cluster.learner.cpus", "0.5")
    words += ("--cluster.explorers.cpus", "0.5")
    process = start(tmp_path / "small.py", two, *words)
    wait_for_step([process], two, 6)
    os.kill(children("ray::RayTrainWorker", process.pid)[1], signal.SIGKILL)
    finish(process)
    expected, got = rows(alone), rows(two)
    assert got.keys() == expected.keys() and ("train", 20) in got
    for key, row in expected.items():
        assert got[key].get("loss") == pytest.approx(row.get("loss"), abs=1e-5)
        assert got[key]["reward"] == pytest.approx(row["reward"])


HERE = {"node_ip_address": "127.0.0.1"}


@pytest.fixture
def nodes():
    """A cluster on loopback whose head has no processors."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(True, head_node_args=HERE | {"num_cpus": 0, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.mark.slow
def test_nodes_come_and_go(make_config, tiny_run, tmp_path, nodes):
    three = [nodes.add_node(num_cpus=1, **HERE) for _ in range(3)]
    config = make_config(tmp_path / "run")
    words = ("--cluster.address", nodes.address, "--cluster.explorers.most", "3")
    process = start(written(config), tmp_path / "run", *words)
    while len(running := children("ray::Worker", os.getpid())) < 3:
        assert process.poll() is None
        time.sleep(0.1)
    for worker in running[:2]:
        os.kill(worker, signal.SIGKILL)
    nodes.remove_node(three[0], allow_graceful=False)
    for _ in range(2):
        nodes.add_node(num_cpus=1, **HERE)
    finish(process)
    require_equal(tmp_path / "run", tiny_run)


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
def test_trajectories_with_judges_on_another_node_are_those_of_the_learner(
    make_config, tmp_path, nodes
):
    words = "--task.name calculator --task.options.operands 2 --task.options.digits 1"
    words += " --sampling.max_new_tokens 12 --sampling.max_turns 3 --sampling.max_turn_tokens 5"
    words += " --training.steps 4 --evaluation.questions 0"
    alone = make_config(tmp_path / "alone", words)
    loop.train(alone)
    nodes.add_node(num_cpus=0, resources={"sampler": 2}, **HERE)
    nodes.add_node(num_cpus=1, **HERE)  # where alone a judge can be
    explorers = c.ExplorersConfig(most=2, cpus=0, resources={"sampler": 1})
    cluster = c.ClusterConfig(nodes.address, explorers, judges=1)
    with killing("ray::Judge", 1) as killed:
        finish(start(written(dataclasses.replace(alone, cluster=cluster)), tmp_path / "run"))
    assert killed
    assert groups(tmp_path / "run") == groups(tmp_path / "alone")
    assert bits(tmp_path / "run") == bits(tmp_path / "alone")


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
