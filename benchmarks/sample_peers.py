"""Speed of the sampler beside Tunix's and transformers', in turns on the same machine.

    python benchmarks/sample_peers.py                                 # builds .peers/tunix and
    .peers/trl first: some minutes, 3 GB python benchmarks/sample_peers.py --only ours,tunix
    --samples 1 python benchmarks/sample_peers.py --output benchmarks/results/sample_peers.json

A worker process a library, as in peers.py: each stays alive with its compiled calls and sleeps
until told to make some; one works at a time, and every round goes through all cases and libraries.
A ratio is taken round by round. A call samples 32 completions of 64 tokens after prompts of 64, at
temperature 1 without truncation, none ending early, from a new model of 4.0M parameters in float32
(the shapes are the same everywhere, the weights are not). How each library is called stands in
sample_peer_ours.py, sample_peer_tunix.py and sample_peer_transformers.py.

A case is K completions a prompt and a limit, the tokens of prompt and completion that there must be
room for: 128 is all that is used, at 2,048 most of the room stays empty. Ours computes and caches a
prompt once; the others are given it K times, as their GRPO trainers do. TRL's GRPO samples by
transformers' `generate` where it has no vLLM; its cache grows, so that a limit costs it nothing.

Tokens/s counts the generated ones over the whole call, prefill included. `first call` is apart from
it and holds what is compiled. `this / shortest limit` is the time of a library's own call over its
time at the smallest limit, in the same round.

Malloc keeps freed memory in the worker of ours, as `grre` does, and not in the others'; see
peers.py for `--keep-memory`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
import peers
import report
from sample_cases import Case

from grre_jax.console import make_console

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = {"ours": "ours", "tunix": "tunix", "transformers": "trl"}  # of peers.py
MODELS = {"4M": peers.MODEL, "tiny": peers.TINY}


class SampleError(Exception):
    """A library generated another number of tokens than it was asked for."""


def cases_for(options: argparse.Namespace) -> dict[str, Case]:
    """By name: every K at every limit, the limits next to each other."""
    made = [
        Case(options.rows, k, options.prompt, options.new, limit)
        for k in options.samples
        for limit in options.limits
    ]
    return {f"K={case.samples}, limit {case.limit:,}": case for case in made}


def measure(
    model: dict[str, int],
    cases: dict[str, Case],
    workers: dict[str, Any],
    repeats: int,
    seconds: float,
) -> list[report.Record]:
    """Times every case in every worker, in turns.

    Args:
        model: `ModelConfig` fields.
        cases: by name; those of the same K from the smallest limit on.
        workers: library to what has a Worker's `ask`; "ours" first, if it is there.
        repeats: rounds.
        seconds: shortest timing of a case in a worker in a round.

    Returns:
        One record a case and library, the libraries of a case together. `ratio` is ours' tokens/s
        over its, `slowdown` its time over that at the smallest limit.

    Raises:
        WorkerError: a worker ended.
        SampleError: a worker generated too few or too many tokens.
    """
    job = {
        "load": {
            "model": model,
            "cases": {name: dataclasses.asdict(case) for name, case in cases.items()},
        }
    }
    about = {library: worker.ask(job) for library, worker in workers.items()}
    keys = [(name, library) for name in cases for library in workers]
    counts = {key: max(1, math.ceil(seconds / _timed(cases, workers, *key, 1))) for key in keys}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in keys}
    for _ in range(repeats):
        for key in keys:
            times[key].append(_timed(cases, workers, *key, counts[key]))
    rounds = {key: np.array(of_key) for key, of_key in times.items()}
    return [_record(cases, about[library], rounds, name, library) for name, library in keys]


def _timed(
    cases: dict[str, Case], workers: dict[str, Any], name: str, library: str, count: int
) -> float:
    answer = workers[library].ask({"call": "calls", "name": name, "count": count})
    if answer["tokens"] != (wanted := cases[name].rows * cases[name].new_tokens):
        raise SampleError(
            f"{library} generated {answer['tokens']} tokens instead of {wanted} in the case {name}"
        )
    return answer["seconds"] / count


def _record(
    cases: dict[str, Case],
    about: dict[str, Any],
    rounds: dict[tuple[str, str], np.ndarray],
    name: str,
    library: str,
) -> report.Record:
    case, own = cases[name], rounds[name, library]
    shortest = next(other for other, of in cases.items() if of.samples == case.samples)
    record = {
        "case": name,
        "name": library,
        **about,
        **dataclasses.asdict(case),
        "tokens": case.rows * case.new_tokens,
        "first_call_seconds": about["first_call_seconds"][name],
        "call_seconds": report.spread(own),
        "tokens_per_second": report.spread(case.rows * case.new_tokens / own),
        "slowdown": report.spread(own / rounds[shortest, library]),
    }
    if (name, "ours") in rounds:
        record["ratio"] = report.spread(own / rounds[name, "ours"])
    return record


def _ratio(record: report.Record) -> str:
    return report.written("ratio", ".2f")(record) if "ratio" in record else ""


LINES = {
    "parameters": lambda r: f"{r['parameters']:,}",
    "rows x (prompt + new) tokens": lambda r: (
        f"{r['rows']} x ({r['prompt_tokens']} + {r['new_tokens']})"
    ),
    "first call s (compiles)": lambda r: f"{r['first_call_seconds']:.1f}",
    "call ms": report.written("call_seconds", ",.0f", 1e3),
    "*tokens/s": report.written("tokens_per_second", ",.0f"),
    "*ours / this": _ratio,
    "this / shortest limit, time": report.written("slowdown", ".2f"),
}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked; ends with a message where it makes no sense."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path(".peers"),
        metavar="DIR",
        help="where peers.py built or builds them (default .peers)",
    )
    parser.add_argument(
        "--only",
        default=",".join(ENVIRONMENTS),
        metavar="NAMES",
        help=f"some of {','.join(ENVIRONMENTS)}",
    )
    parser.add_argument("--size", choices=list(MODELS), default="4M", help="the model (default 4M)")
    report.number(parser, "--rows", 32, "completions decoded side by side")
    report.number(parser, "--samples", [1, 16], "completions a prompt", "K")
    report.number(parser, "--prompt", 64, "length of the prompts", "TOKENS")
    report.number(parser, "--new", 64, "length of the completions", "TOKENS")
    report.number(parser, "--limits", [128, 2048], "room for prompt and completion", "TOKENS")
    parser.add_argument(
        "--keep-memory",
        choices=("ours", "all", "none"),
        default="ours",
        help="whose malloc keeps freed memory (default ours)",
    )
    report.number(parser, "--repeats", 5, "rounds")
    report.number(parser, "--seconds", 1.0, "shortest timing of each in a round")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    options = parser.parse_args(arguments)
    asked = [name for name in options.only.split(",") if name]
    if wrong := [name for name in asked if name not in ENVIRONMENTS]:
        parser.error(f"--only has {', '.join(wrong)}: take some of {','.join(ENVIRONMENTS)}")
    options.only = [name for name in ENVIRONMENTS if name in asked]
    options.limits = sorted(set(options.limits))
    if options.prompt < 1 or options.new < 1 or options.limits[0] < options.prompt + options.new:
        parser.error(
            f"--limits must be at least --prompt {options.prompt} and --new {options.new} together,"
            " each at least 1"
        )
    if any(k < 1 or options.rows % k for k in options.samples):
        parser.error(
            f"--samples {' '.join(map(str, options.samples))}: each must divide --rows"
            f" {options.rows}"
        )
    if options.repeats < 1 or not options.seconds > 0:
        parser.error("--repeats must be at least 1 and --seconds more than 0")
    return options


@contextlib.contextmanager
def started(options: argparse.Namespace) -> Iterator[dict[str, peers.Worker]]:
    """The workers that are asked for, ended on leaving.

    Raises:
        WorkerError: an environment could not be built.
    """
    pythons = {
        name: peers.environment(options.environments, ENVIRONMENTS[name]) for name in options.only
    }
    workers = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, python in pythons.items():
                settings = (
                    peers.KEPT_MEMORY if peers.keeps_memory(options.keep_memory, name) else {}
                )
                workers[name] = peers.Worker(
                    name,
                    [python, HERE / f"sample_peer_{name}.py"],
                    Path(folder) / f"{name}.log",
                    settings,
                )
            yield workers
        finally:
            for worker in workers.values():
                worker.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds, measures, prints the tables and writes the JSON; returns the exit status."""
    options, console, about = options_of(arguments), make_console(), machine.describe()
    console.print(machine.headline(about), highlight=False)
    cases, company = cases_for(options), machine.Company()
    try:
        with started(options) as workers:
            records = measure(
                MODELS[options.size], cases, workers, options.repeats, options.seconds
            )
    except (peers.WorkerError, SampleError) as error:
        console.print(f"error: {error}", highlight=False, markup=False)
        return 1
    about["used_by_others"] = company.share()  # the workers have ended and count as this process
    for name in cases:
        console.print(
            report.table(
                f"{name}, each library in turns",
                [record for record in records if record["case"] == name],
                LINES,
            )
        )
    for record in records[: len(options.only)]:
        console.print(
            f"{record['name']}: {record['versions']}; {record['settings']}", highlight=False
        )
    console.print(machine.company_line(about), highlight=False)
    settings = {
        "size": options.size,
        "repeats": options.repeats,
        "seconds": options.seconds,
        "keep_memory": options.keep_memory,
    }
    report.write(
        options.output,
        {"benchmark": "sample_peers", "machine": about, "settings": settings, "results": records},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
