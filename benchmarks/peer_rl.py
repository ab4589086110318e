"""What the peers of `time_to_accuracy.py` share: the reward function, the questions, the clock and
the snapshots.

Nothing here may need more than the standard library: it runs in the peers' own environments.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def last_number_is(completion: str, answer: str) -> bool:
    """True if the last number of a completion is the answer."""
    return re.findall(r"-?\d+", completion)[-1:] == [answer]


class Run:
    """A peer's run, timed by step and part; snapshots are not counted.

    Args:
        job: "questions" (a JSON file with prompts and answers), "prompts_per_step", "steps",
            "every" (steps between snapshots), "new_tokens", "snapshots" (a folder), "output" (the
            JSON file to write) and what the library needs.

    Attributes:
        job, prompts, answers: of the run, in the order of the steps.
    """

    def __init__(self, job: dict[str, Any]):
        self.job = job
        questions = json.loads(Path(job["questions"]).read_text())
        self.prompts, self.answers = questions["prompts"], questions["answers"]
        self._steps: list[dict[str, float]] = []
        self._step: dict[str, float] = {}
        self._started = time.perf_counter()

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, its seconds counted as this part of the step."""

        def wrapper(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments, **options)
            self._step[part] = self._step.get(part, 0.0) + time.perf_counter() - start
            return result

        return wrapper

    def reward(
        self, prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **_: Any
    ) -> list[float]:
        """1 where the completion ended and its last character is the answer; of sums in words,
        where its last number is.

        In the former a token is a character, and the libraries give the text without its end: as
        long as the limit, it was cut off.
        """
        start, limit = time.perf_counter(), self.job["new_tokens"]
        found = [
            float(
                last_number_is(text, right)
                if self.job.get("sums")
                else len(text) < limit and text[-1:] == right
            )
            for text, right in zip(completions, answer, strict=True)
        ]
        self._step["reward"] = sum(found) / len(found)
        self._step["verification"] = time.perf_counter() - start
        return found

    def start(self) -> None:
        """Begins the first step."""
        self._started = time.perf_counter()

    def step_ended(self, save: Callable[[Path], None]) -> None:
        """Ends a step, whose work is done, and makes a snapshot if it is time."""
        reward, whole = self._step.pop("reward"), time.perf_counter() - self._started
        rest = whole - sum(self._step.values())
        self._steps.append(self._step | {"training": rest, "whole": whole, "reward": reward})
        if len(self._steps) % self.job["every"] == 0:
            save(Path(self.job["snapshots"]) / f"step-{len(self._steps)}")
        self._step, self._started = {}, time.perf_counter()

    def write(self, **about: str) -> None:
        """Writes seconds and mean reward of every step, and what ran."""
        Path(self.job["output"]).write_text(json.dumps({"steps": self._steps, **about}) + "\n")


def run_of_arguments() -> Run:
    """The run of the job in the file that is the first argument."""
    return Run(json.loads(Path(sys.argv[1]).read_text()))
