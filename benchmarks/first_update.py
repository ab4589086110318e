"""Seconds from the start of `grre train` to the first update of the embedded default, by part: with
an empty folder of compiled programs (cold), with the folder that this run left (warm), and of an
older checkout (before), which keeps no programs and prints no parts.

    python benchmarks/first_update.py --before OLDER --output FILE
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import report

from grre_jax.console import make_console

ROOT = Path(__file__).resolve().parents[1]
WORDS = "--warm-start.steps 20 --training.steps 2 --logging.tensorboard false".split()
PARTS = ("demonstrations", "warm start", "evaluation", "sampling", "training", "preparation")


def seconds_of(name: str) -> Any:
    """A line of the table: the seconds of a part, empty if the run did not print it."""
    return lambda record: f"{record[name]:.1f}" if name in record else ""


NAMES = ("whole run", "to the first update", *PARTS, "compilation, of these")
LINES = {name: seconds_of(name) for name in NAMES}


def run(name: str, checkout: Path, work: Path, *words: str) -> report.Record:
    """Runs the embedded default in a process of its own; returns its seconds."""
    command = [sys.executable, "-m", "grre_jax", "train", "configs/arithmetic.py", *WORDS, *words]
    command += ["--run-dir", str(work / name)]
    began = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=True
    )
    record: report.Record = {"name": name, "whole run": time.monotonic() - began}
    if found := re.search(
        r"first update after ([\d.]+)s: (.*); compilation ([\d.]+)s", done.stdout
    ):
        record["to the first update"] = float(found[1])
        record["compilation, of these"] = float(found[3])
        parts = re.findall(r"([a-z ]+) ([\d.]+)s", found[2])
        record |= {part.strip(): float(seconds) for part, seconds in parts}
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
