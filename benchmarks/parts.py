"""Parts of a benchmark, each in a process of its own: one that ends costs its unfinished cases
alone and gives all memory back.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import machine
from report import Record

from grre_jax.training.actors.calls import device_bytes

Cases = Iterable[tuple[str, Callable[[], Record]]]
SAID = 2000  # characters of an error, or of the end of what a process printed


def left_out(part: str, name: str, reason: str) -> Record:
    """The record of what there was no time for."""
    return {"part": part, "name": name, "status": "skipped", "reason": reason}


def work(part: str, cases: Callable[[], Cases], answers: Path, left: float) -> None:
    """Measures a part's cases, in its process; one that fails leaves the others alone.

    Args:
        part: its name.
        cases: makes the cases, name and call.
        answers: file that gets a line of JSON for the machine, then one a case.
        left: seconds; a case is skipped if less is left than the longest earlier one took.
    """
    deadline, longest = time.monotonic() + left, 0.0

    def answer(record: Record) -> None:
        with answers.open("a") as lines:
            lines.write(json.dumps(record) + "\n")

    answer({"machine": machine.describe() | {"memory_bytes": device_bytes()}})
    for name, call in cases():
        start = time.monotonic()
        if longest > deadline - start:
            answer(left_out(part, name, f"{deadline - start:.0f} s were left"))
            continue
        try:
            found = {"status": "done", **call()}
        except Exception as error:
            found = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:SAID]}
        longest = max(longest, time.monotonic() - start)
        answer({"part": part, "name": name} | found)


def launched(command: Sequence[str], part: str, left: float) -> list[Record]:
    """Runs a part's process; what it answered, and a record of its end where that was not its own.

    Args:
        command: of the process; part, file for its answers and seconds left are put behind it.
        part: its name.
        left: seconds after which it is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        answers, log, ended = Path(folder, "answers"), Path(folder, "log"), []
        # Of a GPU's memory JAX takes three quarters unless told otherwise.
        settings = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"} | os.environ | {"TMPDIR": folder}
        whole = [*command, part, str(answers), str(left)]
        try:
            with log.open("w") as out:
                done = subprocess.run(whole, stdout=out, stderr=out, timeout=left, env=settings)
            if done.returncode:
                said = log.read_text(errors="replace").strip()[-SAID:]
                reason = f"its process ended with status {done.returncode}: {said}"
                ended = [{"part": part, "name": "", "status": "failed", "reason": reason}]
        except subprocess.TimeoutExpired:
            ended = [left_out(part, "", f"stopped after {left:.0f} s: the minutes were over")]
        lines = answers.read_bytes().splitlines(keepends=True) if answers.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")] + ended
