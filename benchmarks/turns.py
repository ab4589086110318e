"""Trajectories of several turns: what a turn costs late in a conversation, and how long the device
waits for environments.

    python benchmarks/turns.py                                      # 4.0M parameters
    python benchmarks/turns.py --output benchmarks/results/turns.json

`kept` is `sampling.sample_trajectories`, whose observations are prefilled behind what is kept;
`again` gives every turn's whole conversation to `sampling.sample` as a prompt. Both draw turns of
the same length, all rows in step, with environments that answer at once; a turn's seconds are from
the last answer to the end of its last token. `answers` has four times more trajectories than rows,
turns that end at a random token, twice the length at most, and environments that take 10 ms to 1 s
(`--longest`; uniform in the logarithm): its idle share is the time in which no program of the
sampler runs, the host's work included.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import jax
import machine
import numpy as np
import report
import sizes

from grre_jax import sampling
from grre_jax.console import make_console
from grre_jax.sampling import turns as engine

KEY = jax.random.key(0)


def answered(tokens: Sequence[int]) -> futures.Future:
    """A future of an observation that is there at once."""
    future: futures.Future = futures.Future()
    future.set_result(sampling.Observation(tokens))
    return future


def kept(weights: Any, prompts: np.ndarray, options: argparse.Namespace) -> list[float]:
    """Seconds of each turn, the conversation kept."""
    ends, start = {}, time.perf_counter()
    observation = np.zeros(options.observation, np.int32)

    def respond(address, sample, turn, tokens):
        ends[turn] = time.perf_counter()
        return answered(observation)

    sample(weights, prompts, respond, options, new=options.new)
    return np.diff([start, *ends.values()]).tolist()


def sample(
    weights: Any,
    prompts: np.ndarray,
    respond: Callable,
    options: argparse.Namespace,
    new: int,
    ends: Sequence[int] = (),
) -> None:
    """Samples a trajectory from each prompt, with at most `new` tokens a turn."""
    openings = [sampling.Opening(sampling.Address(i), p, [0]) for i, p in enumerate(prompts)]
    found = sampling.sample_trajectories(
        weights,
        openings,
        respond,
        sampling.Limits(options.turns, options.turns * (new + options.observation)),
        sampling.SamplingParams(max_new_tokens=new),
        key=KEY,
        rows=options.rows,
        eos_ids=ends,
    )
    list(found)


def again(weights: Any, prompts: np.ndarray, options: argparse.Namespace) -> list[float]:
    """Seconds of each turn, the conversation prefilled again."""
    found, observation = [], np.zeros((len(prompts), options.observation), np.int32)
    for _ in range(options.turns):
        start = time.perf_counter()
        params = sampling.SamplingParams(max_new_tokens=options.new)
        samples = sampling.sample(weights, prompts.tolist(), params, key=KEY, eos_ids=())
        new = np.asarray(samples.tokens)[:, 0]
        found.append(time.perf_counter() - start)
        prompts = np.concatenate([prompts, new, observation], axis=1)
    return found


def answers(weights: Any, prompts: np.ndarray, options: argparse.Namespace) -> dict[str, float]:
    """Shares of the time without a program, and of rows without a token in what was decoded."""
    draw, observation = random.Random(0), np.zeros(options.observation, np.int32)
    asked, busy = [0], [0.0, 0]

    def respond(address, sample, turn, tokens):
        future, seconds = futures.Future(), options.longest * 10 ** draw.uniform(-2, 0)
        asked[0] += len(tokens)
        answer = sampling.Observation(observation)
        threading.Timer(seconds, future.set_result, (answer,)).start()
        return future

    def timed(name: str, run: Callable) -> Callable:
        def timed(*arguments):
            start = time.perf_counter()
            out = jax.block_until_ready(run(*arguments))
            busy[0] += time.perf_counter() - start
            if name == "decode":
                busy[1] += int((np.asarray(out[2])[:, 1] >= 0).any((1, 2)).sum())
            return out

        return timed

    several = np.tile(prompts, (engine.SLOTS_PER_ROW, 1))
    ends = range(-(-weights.model.config.vocab_size // options.new))
    names = ("prefill_prompts", "prefill_observations", "gathered", "replaced", "decode")
    whole = {name: getattr(engine.programs, name) for name in names}
    try:
        for name, run in whole.items():
            setattr(engine.programs, name, timed(name, run))
        start = time.perf_counter()
        sample(weights, several, respond, options, new=2 * options.new, ends=ends)
        seconds = time.perf_counter() - start
    finally:
        for name, run in whole.items():
            setattr(engine.programs, name, run)
    return {
        "idle": 1 - busy[0] / seconds,
        "empty_rows": 1 - asked[0] / (busy[1] * options.rows),
        "tokens_per_second": asked[0] / seconds,
    }


def measure(weights: Any, prompts: np.ndarray, options: argparse.Namespace) -> list[report.Record]:
    """Times all three in turns, after a round that compiles."""
    rounds: dict[str, list[Any]] = {"kept": [], "again": [], "answers": []}
    for i in range(1 + options.repeats):
        for name, run in (("kept", kept), ("again", again), ("answers", answers)):
            found = run(weights, prompts, options)
            if i > 0:
                rounds[name].append(found)
    records = []
    for name in ("kept", "again"):
        seconds, ours = np.array(rounds[name]), np.array(rounds["kept"])
        records.append(
            {
                "name": name,
                "turns": [report.spread(seconds[:, turn]) for turn in range(options.turns)],
                "last_turn_seconds": report.spread(seconds[:, -1]),
                "last_turn_ratio": report.spread(ours[:, -1] / seconds[:, -1]),
                "ratio": report.spread(ours.sum(1) / seconds.sum(1)),
            }
        )
    found = rounds["answers"]
    spreads = {name: report.spread(f[name] for f in found) for name in found[0]}
    return [*records, {"name": "answers"} | spreads]


LINES = {
    "first turn ms": lambda r: report.Spread(**r["turns"][0]).written(",.0f", 1e3),
    "last turn ms": report.written("last_turn_seconds", ",.0f", 1e3),
    "*last turn, kept / this": report.written("last_turn_ratio", ".2f"),
    "all turns, kept / this": report.written("ratio", ".2f"),
}
WAITING = {
    "*share of time without a program": report.written("idle", ".3f"),
    "share of rows without a token": report.written("empty_rows", ".3f"),
    "tokens/s": report.written("tokens_per_second", ",.0f"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the tables and writes the JSON; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(sizes.SHAPES), default="4M", help="(default 4M)")
    for name, default, about in (
        ("rows", 16, "trajectories decoded at once"),
        ("turns", 8, "turns of each"),
        ("prompt", 256, "tokens of a prompt"),
        ("new", 32, "tokens of a turn"),
        ("observation", 32, "tokens of an observation"),
        ("repeats", 3, "rounds"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{about} ({default})")
    parser.add_argument(
        "--longest", type=float, default=1.0, help="seconds of the slowest answer (1.0)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    options = parser.parse_args(arguments)
    console, about = make_console(), machine.describe()
    console.print(machine.headline(about), highlight=False)
    model = sizes.build(options.size, bf16=False)
    shape = (options.rows, options.prompt)
    prompts = np.random.default_rng(1).integers(0, model.config.vocab_size, shape).astype(np.int32)
    company = machine.Company()
    records = measure(sampling.prepared(model), prompts, options)
    about["used_by_others"] = company.share()
    console.print(report.table(f"{options.size}, a turn", records[:2], LINES))
    console.print(report.table(f"{options.size}, waiting", records[2:], WAITING))
    console.print(machine.company_line(about), highlight=False)
    settings = {k: v for k, v in vars(options).items() if k != "output"}
    result = {"benchmark": "turns", "machine": about, "settings": settings, "results": records}
    report.write(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
