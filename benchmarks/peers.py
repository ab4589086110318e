"""Speed of the train step beside the same work in Tunix and in TRL, in turns on the same machine.

    python benchmarks/peers.py               # builds .peers/tunix and .peers/trl first: 3 GB
    python benchmarks/peers.py --output benchmarks/results/peers.json

A worker process a library, each in its own virtual environment, stays alive with its batch and
sleeps until told to make some steps; one works at a time, and every round goes through all of them.
A ratio is taken round by round. A step is: log-probs of the batch, GRPO's clipped loss with the
advantages and old log-probs given, no KL, gradients, their norm clipped at 1, AdamW. All train the
same model (4.0M parameters, float32, tied embedding) on the same tokens; how each is driven stands
in peer_ours.py, peer_tunix.py and peer_trl.py.

- full: 32 rows of 128 tokens, 16 of prompt and 112 of completion, nothing padded or shared.
- ragged: 64-token prompts with 8 completions each, geometric of mean 64 under a limit of 512. Ours
  packs, sharing prompts; Tunix pads to the limit, as its GRPO learner does unless packing is asked
  for (which its Llama does not support); TRL pads to the longest of the batch.

Tokens/s counts, for all alike, the unpadded tokens of the single sequences: prompt and completion
for every completion.

glibc's malloc gives large arrays back to the system and takes them anew in every step; the page
faults were a quarter of all three libraries' steps on the machine this was written on. `grre` has
it keep them (`grre_jax.allocation`), the peers do not: so they are timed, each as its users run
it. `--keep-memory` gives the peers the same settings.

pip finds the packages where it is set up to look; torch is asked for as its CPU build, so that no
CUDA package comes along.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
import report
import sizes
from train_step import Data

from grre_jax.console import make_console

HERE = Path(__file__).resolve().parent
LIBRARIES = ("ours", "tunix", "trl")
REQUIREMENTS = {
    "tunix": ["google-tunix==0.1.7"],
    "trl": ["torch==2.13.0+cpu" if sys.platform == "linux" else "torch==2.13.0", "trl==1.16.0"],
}
# glibc reads these when a process starts: no memory by mmap, none given back.
KEPT_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
WORKLOADS = {
    "full": Data(4, 8, 16, 112, pack_length=128, model="4M"),
    "ragged": Data(8, 8, 64, 512, 2, pack_length=576, mean_tokens=64, model="4M"),
    "tiny": Data(2, 2, 3, 4, mean_tokens=2, model="tiny"),  # to see all of it work
}


class WorkerError(Exception):
    """A worker ended; the message says which one and why."""


def ended(name: str, log: Path) -> WorkerError:
    """The error of a process that ended, with the end of what it printed."""
    return WorkerError(f"{name} ended:\n{log.read_text(errors='replace').strip()[-2000:]}")


def write_data(work: Data, path: Path) -> None:
    """The batch as an .npz: prompts [groups, P]; lengths and advantages [completions]; tokens and
    old_logprobs, flat.
    """
    groups = work.batch(sizes.SHAPES[work.model].vocab_size)
    rewards = np.stack([group.rewards for group in groups])
    centred = rewards - rewards.mean(1, keepdims=True)
    advantages = centred / (rewards.std(1, keepdims=True) + 1e-6)
    np.savez(
        path,
        prompts=np.stack([group.prompt_tokens for group in groups]),
        lengths=np.concatenate([group.lengths for group in groups]),
        tokens=np.concatenate([group.tokens for group in groups]),
        old_logprobs=np.concatenate([group.behavior_logprobs for group in groups]),
        advantages=advantages.reshape(-1).astype(np.float32),
    )


def environment(folder: Path, library: str) -> Path:
    """The Python of a library's virtual environment, built if it does not hold `REQUIREMENTS`.

    Raises:
        WorkerError: pip fails.
    """
    if library not in REQUIREMENTS:
        return Path(sys.executable)
    home = folder.resolve() / library
    python = home / "bin" / "python"
    done = home / "installed.txt"
    packages = "\n".join(REQUIREMENTS[library]) + "\n"
    if not (done.is_file() and done.read_text() == packages):
        venv.create(home, clear=True, with_pip=True)
        command = [python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[library]]
        log = home / "pip.log"
        with log.open("w") as output:
            if subprocess.run(command, stdout=output, stderr=output).returncode:
                raise ended("pip", log)
        done.write_text(packages)
    return python


def variables(name: str, keep_memory: bool) -> dict[str, str]:
    """The environment of an arm's process: peers see their own packages only, look nothing up on
    a hub, and keep freed memory if told to.
    """
    ours = name not in REQUIREMENTS
    base = {k: v for k, v in os.environ.items() if ours or k != "PYTHONPATH"}
    kept = KEPT_MEMORY if ours or keep_memory else {}
    return base | {"HF_HUB_OFFLINE": "1"} | kept


class Worker:
    """A worker process and its answers.

    Args:
        name: for messages.
        command: starts it.
        log: a file for what it prints.
        settings: its environment.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, settings: dict[str, str]
    ):
        self.name = name
        self._log = log
        with log.open("w") as messages:
            self._process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                env=settings,
            )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request of `peer_serve.serve`.

        Raises:
            WorkerError: the worker ended instead.
        """
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ended(self.name, self._log)
        return json.loads(line)

    def close(self) -> None:
        """Ends it by ending its input."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def measure(
    work: Data, workers: dict[str, Any], repeats: int, seconds: float, data: Path
) -> list[report.Record]:
    """Times one workload in all workers, in turns.

    Args:
        work: what to do.
        workers: name to what has a Worker's `ask`.
        repeats: rounds.
        seconds: shortest timing of a worker in a round.
        data: where the batch goes.

    Returns:
        One record a worker; `ratio` is ours' tokens/s over its.

    Raises:
        WorkerError: a worker ended.
    """
    write_data(work, data)
    shape = sizes.SHAPES[work.model]
    model = {name: getattr(shape, name) for name in ("vocab_size", *sizes.FIELDS)}
    job = {"model": model, "data": str(data), "work": dataclasses.asdict(work)}
    about = {name: worker.ask({"load": job}) for name, worker in workers.items()}

    def timed(name: str, count: int) -> float:
        return workers[name].ask({"call": "steps", "count": count})["seconds"] / count

    counts = {name: max(1, math.ceil(seconds / timed(name, 1))) for name in workers}
    rounds = [{name: timed(name, count) for name, count in counts.items()} for _ in range(repeats)]
    records = []
    for name in workers:
        times = np.array([one[name] for one in rounds])
        record = {
            "name": name,
            **about[name],
            "tokens": work.tokens(),
            "step_seconds": report.spread(times),
            "tokens_per_second": report.spread(work.tokens() / times),
        }
        if "ours" in workers:
            record["ratio"] = report.spread(one[name] / one["ours"] for one in rounds)
        records.append(record)
    return records


LINES = {
    "parameters": lambda r: f"{r['parameters']:,}",
    "rows x tokens": lambda r: " x ".join(map(str, r["rows"])),
    "first step s (compiles)": lambda r: f"{r['first_step_seconds']:.1f}",
    "step ms": report.written("step_seconds", ",.0f", 1e3),
    "*tokens/s": report.written("tokens_per_second", ",.0f"),
    "*ours / this": report.written("ratio", ".2f"),
}


def add_options(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """The options of what runs beside peers; `names` are the arms."""
    add = parser.add_argument
    add("--environments", type=Path, default=Path(".peers"), metavar="DIR", help="of the peers")
    add("--only", metavar="NAMES", help=f"some of {','.join(names)} (default all)")
    add("--keep-memory", action="store_true", help="peers keep freed memory too, as grre does")


def chosen(parser: argparse.ArgumentParser, only: str | None, names: Sequence[str]) -> list[str]:
    """The arms of `--only`, in the order of `names`; ends with a message if one is unknown."""
    words = only.split(",") if only else names
    if unknown := [word for word in words if word not in names]:
        parser.error(f"--only: expected some of {','.join(names)}, got {','.join(unknown)}")
    return [name for name in names if name in words]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends with a message if one is out of its domain."""
    parser = report.parser(__doc__, 5, 2.0)
    add_options(parser, LIBRARIES)
    names, default = list(WORKLOADS), ["full", "ragged"]
    parser.add_argument("--workloads", nargs="+", choices=names, default=default)
    options = parser.parse_args(arguments)
    options.only = chosen(parser, options.only, LIBRARIES)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds, measures, prints the tables and writes the JSON; returns the exit status."""
    options = options_of(arguments)
    console = make_console()
    about = machine.describe()
    console.print(machine.headline(about), highlight=False)
    results, workers = [], {}
    try:
        pythons = {name: environment(options.environments, name) for name in options.only}
        company = machine.Company()
        with tempfile.TemporaryDirectory() as folder:
            try:
                for name, python in pythons.items():
                    command = [python, HERE / f"peer_{name}.py"]
                    log = Path(folder, f"{name}.log")
                    settings = variables(name, options.keep_memory)
                    workers[name] = Worker(name, command, log, settings)
                for name in options.workloads:
                    data = Path(folder, f"{name}.npz")
                    found = measure(
                        WORKLOADS[name], workers, options.repeats, options.seconds, data
                    )
                    results += [{"workload": name} | record for record in found]
                    console.print(report.table(f"{name}, in turns", found, LINES))
                    for one in found:
                        line = f"{one['name']}: {one['versions']}; {one['settings']}"
                        console.print(line, highlight=False)
            finally:
                for worker in workers.values():
                    worker.close()
    except WorkerError as error:
        console.print(f"error: {error}", highlight=False, markup=False)
        return 1
    about["used_by_others"] = company.share()
    console.print(machine.company_line(about), highlight=False)
    settings = {name: getattr(options, name) for name in ("repeats", "seconds", "keep_memory")}
    result = {"benchmark": "peers", "machine": about, "settings": settings, "results": results}
    report.write(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
