"""Many runs: the budget is printed first, runs of the file are left out, and every run is kept as
soon as it is finished.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grre_jax import reporting
from grre_jax.domains import Share, checked
from grre_jax.errors import UsageError
from grre_jax.reporting.progress import compact_duration
from research.in_graph import warm_start, worker
from research.in_graph.batch import Scale
from research.in_graph.run import Schedule
from research.in_graph.tasks import STUDY_TASKS
from research.in_graph.workers import Task, Workers
from research.runs import Entry, Ledger, Program, Run, Settings

# Seconds of a core for a step, a warm start and a compilation at the default scale, measured on an
# Intel Xeon of 2026: an estimate before the first run; the bar shows the pace of this machine.
STEP, WARM, COMPILE = 0.045, 35.0, 40.0
# Runs of one call on an accelerator, always: numbers differ in the last digits between widths.
SIDE_BY_SIDE = 64


def side_by_side(platform: str) -> int:
    """Returns the number of runs of one call on a platform."""
    return 1 if platform == "cpu" else SIDE_BY_SIDE


class Campaign:
    """The runs of a study in a folder; a context manager around its workers.

    Args:
        folder: of the study: runs.jsonl, warm starts and settings.json.
        scale: the sizes of the runs.
        entries: the algorithms.
        workers: processes.
        console: to print on.
        greedy_bound: greedy accuracy that no warm start may exceed; that of the task if None.

    Attributes:
        ledger: the finished runs.
        machines: on which they were computed, in words, as far as settings.json names them.

    Raises:
        UsageError: there are fewer than one worker, or the folder cannot be written, or contains
            runs of another scale or of another algorithm of the same label.
        DataError: a file of the folder cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        scale: Scale,
        entries: Sequence[Entry],
        workers: int,
        console: Any,
        greedy_bound: float | None = None,
    ):
        if workers < 1:
            raise UsageError(f"--workers {workers}: at least 1 is needed")
        self.folder, self.count, self.console = folder, workers, console
        # A copy of the scale, without what it has computed of itself, is small to send.
        self._bench = worker.Bench(dataclasses.replace(scale), tuple(entries), folder)
        given = {}
        if greedy_bound is not None:
            given["greedy_accuracy"] = checked("greedy_bound", Share, greedy_bound)
        self._bounds = {**STUDY_TASKS[scale.task_name].bounds, **given}
        self.ledger = Ledger(folder / "runs.jsonl")
        shared = {"scale": dataclasses.asdict(scale)}
        self._settings = Settings(folder, shared, entries, self.ledger)
        self.machines = self._settings.machines
        self._workers: Workers | None = None
        self._requested: dict[Run, None] = {}  # a set in order

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._workers is not None:
            self._workers.__exit__(*exception)
        if exception[0] is None:
            for label, count in self._diverged().items():
                of = sum(run.algorithm == label for run in self._requested)
                self.console.print(
                    f"{label} diverged in {count} of its {of} runs: its policy is not finite at"
                    " their end",
                    highlight=False,
                )

    def _diverged(self) -> Counter[str]:
        """Runs without a finite KL at the end, by algorithm."""
        lost = (run for run in self._requested if self.ledger[run]["kl"][-1] is None)
        return Counter(run.algorithm for run in lost)

    def _start(self) -> Workers:
        """Starts the workers, whose machine the folder then names."""
        workers = Workers(self.count)
        self._settings.add_machine(workers.machine)
        return workers

    def budget(self, runs: Sequence[Run]) -> str:
        """Returns the cost of the runs, as a header shows it."""
        missing = [run for run in dict.fromkeys(runs) if run not in self.ledger]
        warm = self._warm(missing)
        seconds = sum(run.steps for run in missing) * STEP + len(warm) * WARM
        compiling = COMPILE * len({run.steps for run in missing}) if missing else 0.0
        steps, done = sum(run.steps for run in missing), len(set(runs)) - len(missing)
        return (
            f"runs {len(missing)} to do, {done} done, {steps:,} steps, warm starts {len(warm)} to"
            f" make, expected {compact_duration(seconds / self.count + compiling)} on {self.count}"
            f" free CPU core{'s' * (self.count > 1)}"
        )

    def complete(self, runs: Sequence[Run], description: str) -> None:
        """Does the missing ones of the runs.

        A kill loses the runs that the workers compute at that time, and nothing else.

        Raises:
            UsageError: a warm start is over a bound of its task, before the first of the runs.
        """
        runs = list(dict.fromkeys(runs))
        self._requested.update(dict.fromkeys(runs))
        missing = [run for run in runs if run not in self.ledger]
        if not missing:
            return
        if self._workers is None:
            self._workers = self._start()
        warm = [(self._bench.warm, number) for number in self._warm(missing)]
        if warm:
            self._compute(warm, "warm starts", len(warm))
        self._check_starts(missing)
        width = side_by_side(self._workers.platform)
        programs = _programs(runs)

        def keep(task: Task, results: Any) -> int:
            done = dict(zip(task[-1], results, strict=True))  # copies that fill a task count once
            for run, result in done.items():
                self.ledger.add(run, result, task[-2])
            return len(done)

        tasks = [(self._bench.make_runs, *call) for call in _calls(missing, programs, width)]
        self._compute(tasks, description, len(runs), len(runs) - len(missing), keep)

    def _compute(
        self,
        tasks: Sequence[Task],
        description: str,
        total: int,
        done: int = 0,
        keep: Callable[[Task, Any], int] = lambda task, result: 1,
    ) -> None:
        """Does the tasks under a bar; `keep` returns how many units of it a result is."""
        with reporting.TrainingProgress(
            total, start_step=done, description=description, console=self.console
        ) as bar:
            bar.phase("compiling")
            for task, result in self._workers.answers(tasks):
                done += keep(task, result)
                bar.update(done)

    def starts(self, runs: Sequence[Run]) -> list[dict[str, Any]]:
        """Returns the figures of the warm starts of runs that were done or are about to be: the
        `seed`, `accuracy`, `greedy_accuracy` and `pass_at_8`, on the held-out questions.

        Raises:
            DataError: the file of one cannot be read.
        """
        return [
            {"seed": seed, **warm_start.load(worker.warm_path(self.folder, seed))[1]}
            for seed in dict.fromkeys(run.seed for run in runs)
        ]

    def _check_starts(self, runs: Sequence[Run]) -> None:
        for figures in self.starts(runs):
            for name, bound in self._bounds.items():
                larger = ", or a larger --greedy-bound" * (name == "greedy_accuracy")
                if figures[name] > bound:
                    raise UsageError(
                        f"{self.folder}: the warm start of seed {figures['seed']} has {name}"
                        f" {figures[name]:.3f} before any run, over the bound of {bound:g}: its"
                        f" task is solved too far to show learning. Choose another --task{larger}"
                    )

    def _warm(self, runs: Sequence[Run]) -> list[int]:
        """The numbers of the warm starts that these runs need and that do not exist."""
        needed = dict.fromkeys(run.seed for run in runs)
        return [seed for seed in needed if not worker.warm_path(self.folder, seed).exists()]


def _calls(
    runs: Sequence[Run], programs: Mapping[int, Program], width: int
) -> list[tuple[Program, list[Run]]]:
    """The calls of the programs, of `width` runs each.

    The last of a program is filled up with copies of its last run, so that a study that was stopped
    uses the program of one that was not.
    """
    calls = []
    for steps, program in programs.items():
        own = [run for run in runs if run.steps == steps]
        for at in range(0, len(own), width):
            part = own[at : at + width]
            calls.append((program, part + part[-1:] * (width - len(part))))
    return calls


def _programs(runs: Sequence[Run]) -> dict[int, Program]:
    """The programs to compile by steps, the longest first: one has room for all of its runs."""
    plans = [(run.steps, Schedule.of(run.regime, run.stored)) for run in runs]
    programs = {}
    for steps in sorted({run.steps for run in runs}, reverse=True):
        own = [plan for of, plan in plans if of == steps]
        fill, ring = max(plan.ahead for plan in own), max(plan.ring() for plan in own)
        programs[steps] = Program(steps, fill, ring)
    return programs
