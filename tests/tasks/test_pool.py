"""Verifiers that hang, crash and lie, in processes of their own."""

import contextlib
import dataclasses
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.tasks import Question, pool as pool_module
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.datasets.arithmetic import Arithmetic
from grre_jax.tasks.datasets.competition_math import CompetitionMath
from grre_jax.tasks.datasets.guru_math import GuruMath
from grre_jax.tasks.datasets.reasoning_gym import ReasoningGym
from grre_jax.tasks.pool import VerifierPool, process_count

TASK = r"""
import ctypes, os, signal, subprocess, sys, time
from pathlib import Path
from grre_jax.tasks import Question, Verdict

class Troubled:
    name = "troubled"
    def __init__(self, folder): self.folder = Path(folder)
    def question(self, position): return Question(f"q{position}", "?", "1")
    def evaluation(self, count): return [self.question(0)]

    def verify(self, question, completion):
        do = getattr(self, completion, None)
        if do: return do()
        return Verdict(float(len(completion)), {"own": 1.0})

    def hang(self):
        with (self.folder / "hangs").open("a") as file: file.write("x")
        time.sleep(1000)
    def hang_in_c(self):
        (self.folder / "hanging").touch()
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
        ctypes.PyDLL(None).sleep(1000)  # holds the interpreter's lock
    def hang_with_a_child(self):
        child = subprocess.Popen(["sleep", "1000"])
        (self.folder / "child").write_text(str(child.pid))
        time.sleep(1000)
    def exit(self): os._exit(3)
    def segfault(self): ctypes.string_at(0)
    def fails(self): raise ValueError("no")
    def alarm(self):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return Verdict(1.0, {"own": 1.0})
    def slow(self):
        time.sleep(0.2)
        return Verdict(1.0, {"own": 1.0})
    def once(self):
        mark = self.folder / "mark"
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return Verdict(5.0, {"own": 1.0})
    def fork(self):
        if os.fork() == 0: sys.exit(0)
        return Verdict(0.25, {"own": 1.0})
    def other_text(self):
        os.write(int(sys.argv[1]), (1).to_bytes(4, "big") + b"x")
        return Verdict(0.75, {"own": 1.0})
    def facts(self): return Verdict(os.getpid(), {"jax": "jax" in sys.modules, "cpu": os.environ["JAX_PLATFORMS"] == "cpu", "badness": int(Path("/proc/self/oom_score_adj").read_text())})

def build(folder, seed=0): return Troubled(folder)
def trouble(): raise RuntimeError("not today")
def leaves(): os._exit(7)
"""
QUESTION = Question("q1", "?", "1")

NAN = pytest.approx(float("nan"), nan_ok=True)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    (folder / "troubled.py").write_text(TASK)
    # Long enough for an honest verdict on a machine that is busy with something else.
    return TaskConfig(
        f"{folder / 'troubled.py'}:build", {"folder": str(folder)}, verify_timeout=6.0
    )


@pytest.fixture(scope="module")
def pool(spec):
    pool = VerifierPool(spec, 0, processes=2)
    yield pool
    pool.close()


def judge(pool, completions):
    (judged,) = pool([(QUESTION, completions)])
    return judged


def pids(pool):
    return [worker.process.pid for worker in pool._workers if worker.is_running]


def ends(pid):
    """Waits until a process has ended (a zombie has); the test's own limit bounds the wait."""
    while (stat := Path(f"/proc/{pid}/stat")).exists():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                break
        time.sleep(0.02)
    return True


def test_nothing_that_a_verifier_does_costs_more_than_its_completion(pool, spec):
    """Whatever two workers meet and in whatever order, everybody gets his own verdict."""
    kinds = dict(
        exit="crash",
        fails="error",
        hang_in_c="timeout",
        segfault="crash",
        hang_with_a_child="timeout",
        other_text="crash",
    )
    completions = [text for bad in kinds for text in (bad, "fine" + bad)]
    # A fork comes back to where completions are taken and answered.
    good = {"xx": 2, "fork": 0.25, "xxx": 3, "alarm": 1, "slow": 1, "yyyy": 4}
    first, second = pool([(QUESTION, completions), (QUESTION, [*good] * 3)])
    assert first.failures == [kinds.get(text, "") for text in completions]
    rewards = [NAN if text in kinds else len(text) for text in completions]
    assert first.rewards.tolist() == rewards
    assert second.failures == [""] * 18 and second.rewards.tolist() == [*good.values()] * 3
    assert ends(int(Path(spec.options["folder"], "child").read_text()))  # what the verifier started


def test_workers_stay_and_take_neither_jax_nor_the_memory_of_others(pool):
    judge(pool, ["slow", "slow"])
    before = pids(pool)
    judged = judge(pool, ["facts"])
    assert judged.rewards[0] in before and os.getpid() not in before
    facts = {name: row.item() for name, row in judged.components.items()}
    assert facts == {"jax": 0, "cpu": 1, "badness": 1000}
    for pid in before:
        os.kill(pid, signal.SIGTERM)  # as a cluster tells all processes of a job
        os.kill(pid, signal.SIGINT)
    judge(pool, ["alarm", "alarm"])  # would strike under the next completion
    assert judge(pool, ["slow", "slow"]).failures == [""] * 2 and pids(pool) == before


def test_a_worker_that_was_killed_costs_nobody(pool):
    for pid in pids(pool):
        os.kill(pid, signal.SIGKILL)
        assert ends(pid)
    assert judge(pool, ["a", "bb", "ccc", "once"]).rewards.tolist() == [1, 2, 3, 5]


def test_an_interrupted_call_leaves_no_process_behind(spec, tmp_path, monkeypatch):
    asked = pool_module._Worker._asked

    def slowly(*arguments):
        outcome = asked(*arguments)
        time.sleep(0.5)  # so that the next call begins before the interrupted one's threads end
        return outcome

    monkeypatch.setattr(pool_module._Worker, "_asked", slowly)
    options = {"folder": str(tmp_path)}
    config = dataclasses.replace(spec, options=options, verify_timeout=60.0)
    pool = VerifierPool(config, 0, 2)  # the interrupt comes before the limit at any load
    judge(pool, ["slow", "slow"])
    before = pids(pool)
    main = threading.main_thread().ident
    # A shell starts what runs in its background with the signal ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # an exception raised in JAX's hook of the collector would be lost
    hangs = tmp_path / "hangs"
    hangs.touch()

    def interrupt():
        while hangs.read_text() != "xx":
            time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        judge(pool, ["hang", "hang", "x"])
    gc.enable()
    signal.signal(signal.SIGINT, handler)
    assert pids(pool) == [] and all(ends(pid) for pid in before)
    assert judge(pool, ["abc"]).rewards.tolist() == [3]
    pool.close()
    assert hangs.read_text() == "xx"  # no job of the interrupted call began again


@pytest.mark.parametrize(("function", "error"), [("trouble", UsageError), ("leaves", DataError)])
def test_a_task_that_another_process_cannot_build(spec, function, error):
    pool = VerifierPool(TaskConfig(spec.name.replace(":build", f":{function}")), 0, 1)
    for _ in range(2):  # a pool that failed may be asked again
        with pytest.raises(error, match="not today|status 7"):
            judge(pool, ["x"])
        assert pids(pool) == []


HANGS = """
import sys, threading
from grre_jax.tasks import Question
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.pool import VerifierPool
name, folder = sys.argv[1:]
pool = VerifierPool(TaskConfig(name, {"folder": folder}, verify_timeout=1000.0), 0, 2)
question = Question("q", "?", "")
first = threading.Thread(target=pool, args=([(question, ["slow", "slow"])],))
first.start()
first.join()
print(*(worker.process.pid for worker in pool._workers), flush=True)
pool([(question, ["hang_in_c"])])
"""


def test_workers_end_with_a_pool_that_is_killed(spec):
    """kill -9 of the process that has the pool, while one worker hangs in C code with signals
    blocked and the other waits. A thread that has ended since started them.
    """
    hanging = Path(spec.options["folder"], "hanging")
    hanging.unlink(missing_ok=True)
    words = [sys.executable, "-c", HANGS, spec.name, spec.options["folder"]]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables)
    workers = list(map(int, child.stdout.readline().split()))
    while not hanging.exists():
        time.sleep(0.02)
    child.kill()
    child.communicate()
    assert len(workers) == 2 and all(map(ends, workers))


def test_trusted_verifiers_alone_judge_in_the_run_s_own_process(spec):
    assert process_count(Arithmetic, -1) == 0 and process_count(Arithmetic, 1) == 1
    for task in (spec.build(0), CompetitionMath, GuruMath, ReasoningGym):  # or others' parsers
        assert process_count(task, -1) > 0 == process_count(task, 0)
