"""Judges on a Ray cluster on loopback: the verdicts of one process, whoever is killed."""

import os
import signal
import threading

import pytest

from grre_jax import ray_cluster
from grre_jax.tasks import Question
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.judging import InProcess
from grre_jax.tasks.pool import ClusterJudges, start_judges

from ..run_processes import children

pytest.importorskip("ray", reason="needs the extra cluster")

TASK = """
import os
import time
from grre_jax.tasks import Verdict
from grre_jax.tasks.datasets.arithmetic import Arithmetic

class Length(Arithmetic):
    def verify(self, question, completion):
        time.sleep(0.02)
        if completion == "hang":
            time.sleep(60)
        if completion == "raise":
            raise ValueError("wrong")
        if completion == "exit":
            os._exit(3)
        return Verdict(float(len(completion)))

def build(seed):
    return Length(operands=2, seed=seed)
"""


@pytest.mark.slow
def test_judges_that_are_killed_give_the_verdicts_of_one_process(tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    config = TaskConfig(f"{tmp_path}/task.py:build")
    asked = [(Question(f"q{n}", "?", "1"), ["a" * k for k in range(n)]) for n in range(32)]
    ended = threading.Event()
    killed = []

    def kill():
        while len(killed) < 3 and not ended.wait(0.5):
            for judge in children("ray::VerifierPool", os.getpid())[:1]:
                os.kill(judge, signal.SIGKILL)
                killed.append(judge)

    with ray_cluster.connected("local") as ray:
        judges = start_judges(ray, config, 0, 2)
        judge = ClusterJudges(config, 0, judges)
        judge([])
        thread = threading.Thread(target=kill)
        thread.start()
        spread = judge(asked)
        ended.set()
        thread.join()
    assert killed
    for found, expected in zip(spread, InProcess(config.build(0))(asked), strict=True):
        assert found.rewards.tolist() == expected.rewards.tolist()
