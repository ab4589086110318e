"""Judges on a Ray cluster on loopback: the verdicts of one process, whoever is killed."""

import os
import signal
import threading

import pytest

from grre_jax import ray_cluster, rollouts
from grre_jax.rollouts.tools.reverify import reverify
from grre_jax.tasks import cluster_judges
from grre_jax.tasks.judging import InProcess
from grre_jax.tasks.rewards import TaskSpec

from ..groups import text_group
from ..run_processes import children

pytest.importorskip("ray", reason="needs the extra cluster")

TASK = """
import os
import time
from grre_jax.tasks import Verdict
from grre_jax.tasks.datasets.arithmetic import Arithmetic

class Length(Arithmetic):
    name = "length"

    def verify(self, question, completion):
        time.sleep(0.01)
        if completion == "hang":
            time.sleep(60)
        if completion == "raise":
            raise ValueError("wrong")
        if completion == "exit":
            os._exit(3)
        return Verdict(float(len(completion)), {"half": len(completion) / 2})

def build(seed):
    return Length(operands=2, seed=seed)
"""


@pytest.mark.slow
def test_sixteen_data_sets_are_verified_as_by_one_process_whatever_is_killed(tmp_path):
    for number in range(16):
        groups = [text_group(16 * number + n, ["a" * n, "b"], [0, 1]) for n in range(16)]
        rollouts.write(tmp_path / "r", groups, writer="w", metadata={"task": "t"})
    (tmp_path / "task.py").write_text(TASK)
    spec = TaskSpec(f"{tmp_path}/task.py:build")
    described = {"task": "length", "reward": "length 1"}
    reverify(tmp_path / "r", tmp_path / "alone", InProcess(spec.build()), described)
    ended = threading.Event()
    killed = []

    def kill():
        while len(killed) < 5 and not ended.wait(0.5):
            for judge in children("ray::Judge", os.getpid())[:1]:
                os.kill(judge, signal.SIGKILL)
                killed.append(judge)

    with ray_cluster.connected("local") as ray:
        judges = cluster_judges.start(ray, spec, 2, timeout=10.0)
        judge = cluster_judges.ClusterJudges(spec, judges, 10.0)
        judge([])
        thread = threading.Thread(target=kill)
        thread.start()
        reverify(tmp_path / "r", tmp_path / "spread", judge, described, judges=2)
        ended.set()
        thread.join()
    assert len(killed) == 5
    alone, spread = (rollouts.read(tmp_path / name) for name in ("alone", "spread"))
    assert list(spread) == list(alone)
    assert [entry.groups for entry in spread.datasets] == [16] * 16
