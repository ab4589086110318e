"""Long-tailed lengths: rows that are refilled as they end, beside batches that run until their
longest row does.

    python benchmarks/sample_lengths.py                               # 4.0M parameters, 256
    completions through 32 slots python benchmarks/sample_lengths.py --output
    benchmarks/results/sample_lengths.json

The lengths are those of sample_lengths.json: 256, geometric of mean 32 under a limit of 256, as
`draw` makes them from a fixed seed (`python benchmarks/sample_lengths.py --draw` writes the file
anew). Every completion is given its length as its limit, and nothing else ends it. Four ways take
turns, each over all 256:

- refilled: one call of `sampling.sample` with 32 slots;
- batches: eight calls of 32 completions side by side, each as long as its longest;
- both with 256 prompts of one completion each (K=1) and with 32 prompts of 8 (K=8), which share
  their prompt's cache. All have 64 tokens.

The list-scheduling bound is the number of steps in which slots that each take the next completion,
in the order asked, the moment they are free would be through, a completion of n tokens taking n
steps: no sampler that does not know the lengths beforehand, and starts completions in this order,
needs fewer. Useful tokens are those of the completions; a second of the whole call, prefill
included.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import machine
import numpy as np
import report
import sizes
from sample_run import taken

from grre_jax import sampling
from grre_jax.console import make_console
from grre_jax.models import Transformer

FILE = Path(__file__).resolve().with_name("sample_lengths.json")
COUNT, LIMIT, MEAN, SEED = 256, 256, 32, 0


def draw() -> list[int]:
    """The lengths of the file."""
    return np.minimum(np.random.default_rng(SEED).geometric(1 / MEAN, COUNT), LIMIT).tolist()


def list_schedule(lengths: Sequence[int], slots: int) -> int:
    """Steps until all are done, where a slot that becomes free takes the next completion at
    once.
    """
    ends = [0] * slots
    for length in lengths:
        heapq.heappush(ends, heapq.heappop(ends) + int(length))
    return max(ends)


def batched_steps(lengths: np.ndarray, slots: int) -> int:
    """Steps of batches of `slots` completions, each until its longest ends."""
    return sum(int(lengths[i : i + slots].max()) for i in range(0, len(lengths), slots))


@dataclasses.dataclass(frozen=True)
class Work:
    """Completions with a length each.

    Args:
        model: the policy.
        lengths: [completions], those of a prompt together.
        limit: tokens of a completion at most.
        slots: completions side by side; divides their number.
        samples: completions a prompt (K); divides slots.
        prompt_tokens: of every prompt.
    """

    model: Transformer
    lengths: np.ndarray
    limit: int
    slots: int
    samples: int
    prompt_tokens: int

    @property
    def prompts(self) -> np.ndarray:
        """[prompts, prompt_tokens] token ids."""
        shape = (self.lengths.size // self.samples, self.prompt_tokens)
        return (
            np.random.default_rng(1)
            .integers(0, self.model.config.vocab_size, shape)
            .astype(np.int32)
        )

    @property
    def limits(self) -> np.ndarray:
        """[prompts, samples]."""
        return self.lengths.reshape(-1, self.samples).astype(np.int32)

    def refilled(self) -> sampling.Samples:
        """All in one call."""
        return self._sample(np.arange(len(self.limits)), self.slots)

    def batches(self) -> list[sampling.Samples]:
        """A call for as many as there are slots."""
        each = self.slots // self.samples
        return [
            self._sample(np.arange(i, i + each), None) for i in range(0, len(self.limits), each)
        ]

    def _sample(self, which: np.ndarray, slots: int | None) -> sampling.Samples:
        samples = sampling.sample(
            self.model,
            self.prompts[which],
            sampling.SamplingParams(max_new_tokens=self.limit),
            key=jax.random.key(0),
            group_size=self.samples,
            limits=self.limits[which],
            max_concurrent=slots,
            prompt_lengths=np.full(len(which), self.prompt_tokens, np.int32),
            positions=which,
            eos_ids=(),
        )
        return jax.block_until_ready(samples)

    def agreement(self) -> float:
        """Share of the completions that are the same token by token both ways.

        Raises:
            ValueError: a completion has another length than it was given.
        """
        tokens = []
        for parts in ([self.refilled()], self.batches()):
            if (np.concatenate([part.lengths for part in parts]) != self.limits).any():
                raise ValueError("the sampler gave completions other lengths than their limits")
            tokens.append(np.concatenate([part.tokens for part in parts]))
        return float((tokens[0] == tokens[1]).all(-1).mean())

    def steps_refilled(self) -> int:
        """Decode steps of `refilled`, as the sampler counts them."""
        return taken(
            self.model,
            self.prompts,
            group_size=self.samples,
            max_new_tokens=self.limit,
            limits=self.limits,
            max_concurrent=self.slots,
        ).steps


def measure(works: dict[str, Work], repeats: int, seconds: float) -> list[report.Record]:
    """Times every work both ways, in turns.

    Args:
        works: by name.
        repeats: rounds.
        seconds: shortest timing of each in a round.

    Returns:
        Two records a work; `ratio` is the useful tokens/s of its refilled rows over this one's.
    """
    calls: dict[str, Callable] = {}
    agreements = {
        name: work.agreement() for name, work in works.items()
    }  # the first calls: they compile
    for name, work in works.items():
        calls |= {f"refilled, {name}": work.refilled, f"batches, {name}": work.batches}
    times, records = machine.in_turns(calls, repeats, seconds), []
    for name, work in works.items():
        bound, refilled = list_schedule(work.lengths, work.slots), times[f"refilled, {name}"]
        steps = {
            "refilled": work.steps_refilled(),
            "batches": batched_steps(work.lengths, work.slots),
        }
        for way, needed in steps.items():
            own = times[f"{way}, {name}"]
            record = {
                "name": f"{way}, {name}",
                "completions": work.lengths.size,
                "slots": work.slots,
                "samples": work.samples,
            }
            record |= {
                "prompt_tokens": work.prompt_tokens,
                "limit": work.limit,
                "tokens": int(work.lengths.sum()),
            }
            record |= {
                "steps": needed,
                "list_scheduling_steps": bound,
                "fraction_of_list_scheduling": bound / needed,
            }
            record |= {
                "identical_completions": agreements[name],
                "call_seconds": report.spread(own),
            }
            records.append(
                record
                | {
                    "useful_tokens_per_second": report.spread(work.lengths.sum() / own),
                    "ratio": report.spread(own / refilled),
                }
            )
    return records


LINES = {
    "completions through slots": lambda r: f"{r['completions']} through {r['slots']}",
    "tokens": lambda r: f"{r['tokens']:,}",
    "decode steps": lambda r: f"{r['steps']:,}",
    "list-scheduling bound, steps": lambda r: f"{r['list_scheduling_steps']:,}",
    "*bound / steps": lambda r: f"{r['fraction_of_list_scheduling']:.1%}",
    "call ms": report.written("call_seconds", ",.0f", 1e3),
    "*useful tokens/s": report.written("useful_tokens_per_second", ",.0f"),
    "*refilled / this": report.written("ratio", ".2f"),
    "same completions both ways": lambda r: f"{r['identical_completions']:.1%}",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table and writes the JSON; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draw", action="store_true", help=f"only write {FILE.name} anew")
    parser.add_argument(
        "--size", choices=list(sizes.SHAPES), default="4M", help="the model (default 4M)"
    )
    parser.add_argument(
        "--lengths",
        type=Path,
        default=FILE,
        metavar="FILE",
        help=f"the lengths (default {FILE.name})",
    )
    report.number(parser, "--slots", 32, "completions side by side")
    report.number(parser, "--samples", [1, 8], "completions a prompt", "K")
    report.number(parser, "--prompt", 64, "length of the prompts", "TOKENS")
    report.number(parser, "--repeats", 5, "rounds")
    report.number(parser, "--seconds", 0.5, "shortest timing of each in a round")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    options = parser.parse_args(arguments)
    if options.draw:
        FILE.write_text(
            json.dumps({"seed": SEED, "mean": MEAN, "limit": LIMIT, "lengths": draw()}) + "\n"
        )
        return 0
    given = json.loads(options.lengths.read_text())
    lengths = np.array(given["lengths"])
    if (
        options.slots < 1
        or lengths.size % options.slots
        or any(k < 1 or options.slots % k for k in options.samples)
    ):
        parser.error(
            f"--slots {options.slots} must divide the {lengths.size} lengths, and each of --samples"
            " must divide --slots"
        )
    console, about = make_console(), machine.describe()
    console.print(machine.headline(about), highlight=False)
    model = sizes.build(options.size, bf16=False)
    works = {
        f"K={k}": Work(model, lengths, given["limit"], options.slots, k, options.prompt)
        for k in options.samples
    }
    company = machine.Company()
    records = measure(works, options.repeats, options.seconds)
    about["used_by_others"] = company.share()
    console.print(
        report.table(
            f"{options.size}, lengths of mean {lengths.mean():.1f} under a limit of"
            f" {given['limit']}",
            records,
            LINES,
        )
    )
    console.print(machine.company_line(about), highlight=False)
    settings = {
        "size": options.size,
        "lengths": options.lengths.name,
        "repeats": options.repeats,
        "seconds": options.seconds,
    }
    report.write(
        options.output,
        {"benchmark": "sample_lengths", "machine": about, "settings": settings, "results": records},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
