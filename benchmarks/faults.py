"""Kill -9 of `grre train` at random moments: the run that comes out is, bit for bit, the run that
was left alone.

A tiny run is killed and continued with `--resume` again and again. Half of the moments are drawn
evenly, starting and compiling included; half come after a number of changes in the run's folder,
while a data set is sealed or a checkpoint written. Compared are every array of the last checkpoint,
the log without what a clock measures, and the stored groups.

    python benchmarks/faults.py --kills 100 --output benchmarks/results/faults.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import machine
import numpy as np
import report

from grre_jax import rollouts
from grre_jax.training import build, step as state
from grre_jax.training.checkpoints import Checkpoints
from grre_jax.training.policies import load_config

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "arithmetic.py"
SMALL = """
--warm_start.steps=40 --warm_start.demonstrations=256 --warm_start.batch_size=16
--warm_start.optimizer.decay_steps=40 --training.prompts_per_step=4 --sampling.prompts_per_call=4
--regime.sync_interval=2 --checkpoint.every=5 --checkpoint.export=false --evaluation.questions=8
--evaluation.every=10 --logging.tensorboard=false
""".split()
CLOCKED = ("time", "elapsed", "tokens_per_second", "seconds_")


def start(run: Path, seed: int, steps: int) -> subprocess.Popen:
    """Starts or resumes the run in a process of its own."""
    resume = "--resume" if (run / "config.json").exists() else "--overwrite"
    words = [f"--run-dir={run}", resume, f"--seed={seed}", f"--training.steps={steps}", *SMALL]
    with run.with_suffix(".log").open("ab") as log:
        command = [sys.executable, "-m", "grre_jax", "train", str(CONFIG), *words]
        return subprocess.Popen(command, stdout=log, stderr=log)


def finish(process: subprocess.Popen, run: Path) -> None:
    """Waits for the run's end, which must be a good one."""
    if process.wait():
        raise RuntimeError(run.with_suffix(".log").read_text()[-2000:])


def moment(process: subprocess.Popen, run: Path, draw: random.Random, longest: float) -> bool:
    """Sleeps until the next kill; True if the process still runs."""

    def names() -> set[Path]:
        return {path for part in ("checkpoints", "rollouts") for path in (run / part).glob("*")}

    changes = draw.randint(1, 8) if draw.random() < 0.5 else 0
    end = time.monotonic() + (2 * longest if changes else draw.uniform(0, longest))
    before = names()
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
        now = names()
        if changes == 1 and now != before:
            break
        changes -= now != before
        before = now
    return process.poll() is None


def disturbed(
    run: Path, seed: int, steps: int, kills: int, draw: random.Random, longest: float
) -> int:
    """One run with at most so many kills; how many there were."""
    count = 0
    process = start(run, seed, steps)
    while count < kills and moment(process, run, draw, longest):
        process.kill()
        process.wait()
        count += 1
        process = start(run, seed, steps)
    finish(process, run)
    return count


def checkpoint(run: Path) -> list[bytes]:
    """Every array of the last checkpoint: parameters, optimizer, step."""
    config = load_config(run)
    parts = build.build(config)
    like = state.fresh(parts.trained, config.optimizer, parts.mesh)
    checkpoints = Checkpoints(run / "checkpoints", read_only=True)
    with contextlib.closing(checkpoints):
        return [np.asarray(x).tobytes() for x in jax.tree.leaves(checkpoints.restore(like))]


def rows(run: Path) -> list[dict]:
    """The log without what a clock measures."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not k.startswith(CLOCKED)} for line in lines]


def compared(run: Path, expected: Path) -> dict[str, bool]:
    """What of a run is that of another."""
    groups = [list(rollouts.read(folder / "rollouts")) for folder in (run, expected)]
    return {
        "checkpoint": checkpoint(run) == checkpoint(expected),
        "log": rows(run) == rows(expected),
        "groups": groups[0] == groups[1],
        "verified": rollouts.verify(run / "rollouts").ok,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it; returns 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    report.number(parser, "--kills", 100, "in all runs together")
    report.number(parser, "--steps", 60, "of a run")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    options = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    draw = random.Random(0)  # of the moments
    kills = 0
    results = []
    with tempfile.TemporaryDirectory() as folder:
        while kills < options.kills:
            seed = len(results)
            alone, run = (Path(folder, f"{name}-{seed}") for name in ("alone", "killed"))
            began = time.monotonic()
            finish(start(alone, seed, options.steps), alone)
            longest = time.monotonic() - began
            count = disturbed(run, seed, options.steps, options.kills - kills, draw, longest)
            kills += count
            results.append({"seed": seed, "kills": count, "same": compared(run, alone)})
            print(json.dumps(results[-1]), flush=True)
    good = all(all(result["same"].values()) for result in results)
    result = {"benchmark": "faults", "machine": machine.describe(), "good": good}
    report.write(options.output, result | {"results": results})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
