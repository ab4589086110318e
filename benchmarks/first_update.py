"""Seconds from the start of `grre train` to the first update of the embedded default, by part, from
the times in its log: with an empty folder of compiled programs (cold), with the folder that this
run left (warm), and of an older checkout (before).

    python benchmarks/first_update.py --before OLDER --output FILE
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import report

from grre_jax.console import make_console
from grre_jax.reporting import read_metrics

ROOT = Path(__file__).resolve().parents[1]
WORDS = "--warm-start.steps 20 --training.steps 2 --logging.tensorboard false".split()
# The row that ends each part, by kind and place.
PARTS = {
    "preparation, demonstrations, first step of the warm start": ("warm_start", 0),
    "other steps of the warm start": ("warm_start", -1),
    "evaluation": ("eval", 0),
    "sampling and first update": ("train", 0),
}


def seconds_of(name: str) -> Any:
    """A line of the table."""
    return lambda record: f"{record[name]:.1f}"


LINES = {name: seconds_of(name) for name in ("whole run", "to the first update", *PARTS)}


def run(name: str, checkout: Path, work: Path, *words: str) -> report.Record:
    """Runs the embedded default in a process of its own; returns its seconds."""
    command = [sys.executable, "-m", "grre_jax", "train", "configs/arithmetic.py", *WORDS, *words]
    command += ["--run-dir", str(work / name)]
    began = time.time()
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=True)
    record: report.Record = {"name": name, "whole run": time.time() - began}
    rows = read_metrics(work / name)
    ends = [began, *(rows[kind][place]["time"] for kind, place in PARTS.values())]
    record["to the first update"] = ends[-1] - began
    for part, (start, end) in zip(PARTS, itertools.pairwise(ends), strict=True):
        record[part] = end - start
    return record


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--before", type=Path, help="an older checkout")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    options = parser.parse_args()
    about, company = machine.describe(), machine.Company()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        records = [run("before", options.before.resolve(), work)] if options.before else []
        for name in ("cold", "warm"):
            records.append(run(name, ROOT, work, "--compiled", str(work / "compiled")))
    about["used_by_others"] = company.share()
    make_console().print(report.table("seconds", records, LINES))
    report.write(
        options.output, {"benchmark": "first_update", "machine": about, "results": records}
    )


if __name__ == "__main__":
    main()
