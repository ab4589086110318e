"""A long prompt with many completions: its cache shared, beside the same rows with a copy of the
prompt each.

    python benchmarks/sample_prefix.py                                # 4.0M parameters, 2 prompts
    of 1,024 tokens, 16 completions each python benchmarks/sample_prefix.py --output
    benchmarks/results/sample_prefix.json

`shared` asks for K completions of each prompt, `copied` gives every prompt K times for one
completion; both decode the same number of rows, in turns. KV bytes are those of the sampler's
arrays at the end of a call, blocks counted whole. Decode time begins when the first token of every
completion is drawn, which comes from the prefill; the prefill is told apart, because sharing saves
it too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import machine
import numpy as np
import report
import sizes
from sample_run import Taken, taken

from grre_jax.console import make_console
from grre_jax.models import Transformer


def measure(
    model: Transformer, prompts: np.ndarray, samples: int, new_tokens: int, repeats: int
) -> list[report.Record]:
    """Times both ways, in turns.

    Args:
        model: the policy.
        prompts: [prompts, length] token ids.
        samples: completions a prompt (K).
        new_tokens: length of every completion.
        repeats: rounds, after one that compiles.

    Returns:
        A record each for "shared" and "copied"; the ratios are shared over this one.
    """
    ways = {"shared": (prompts, samples), "copied": (np.repeat(prompts, samples, axis=0), 1)}
    rounds: dict[str, list[Taken]] = {way: [] for way in ways}
    for i in range(1 + repeats):
        for way, (given, each) in ways.items():
            found = taken(model, given, group_size=each, max_new_tokens=new_tokens)
            if i > 0:
                rounds[way].append(found)
    return [
        _record(way, len(given), each, prompts.shape[1], new_tokens, rounds)
        for way, (given, each) in ways.items()
    ]


def _record(
    way: str,
    prompts: int,
    samples: int,
    prompt_tokens: int,
    new_tokens: int,
    rounds: dict[str, list[Taken]],
) -> report.Record:
    def seconds(name, of):
        return np.array([getattr(found, name) for found in rounds[of]])

    own, shared = (
        {name: seconds(name, of) for name in ("prefill_seconds", "decode_seconds")}
        for of in (way, "shared")
    )
    cache, shared_cache = (rounds[of][-1].cache_bytes for of in (way, "shared"))
    return {
        "name": way,
        "prompts": prompts,
        "samples": samples,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "cache_bytes": cache,
        "cache_bytes_ratio": shared_cache / cache,
        **{name: report.spread(times) for name, times in own.items()},
        "decode_ratio": report.spread(shared["decode_seconds"] / own["decode_seconds"]),
        "call_ratio": report.spread(sum(shared.values()) / sum(own.values())),
    }


LINES = {
    "prompts x completions": lambda r: f"{r['prompts']} x {r['samples']}",
    "prompt + new tokens": lambda r: f"{r['prompt_tokens']:,} + {r['new_tokens']}",
    "KV MB": lambda r: f"{r['cache_bytes'] / 1e6:,.1f}",
    "*KV, shared / this": lambda r: f"{r['cache_bytes_ratio']:.3f}",
    "prefill ms": report.written("prefill_seconds", ",.0f", 1e3),
    "decode ms": report.written("decode_seconds", ",.0f", 1e3),
    "*decode time, shared / this": report.written("decode_ratio", ".2f"),
    "prefill and decode, shared / this": report.written("call_ratio", ".2f"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table and writes the JSON; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", choices=list(sizes.SHAPES), default="4M", help="the model (default 4M)"
    )
    report.number(parser, "--prompts", 2, "different prompts")
    report.number(parser, "--samples", 16, "completions a prompt", "K")
    report.number(parser, "--prompt", 1024, "length of the prompts", "TOKENS")
    report.number(parser, "--new", 64, "length of the completions, at least 2", "TOKENS")
    report.number(parser, "--repeats", 5, "rounds")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    options = parser.parse_args(arguments)
    if min(options.prompts, options.samples, options.prompt, options.repeats, options.new - 1) < 1:
        parser.error(
            "--prompts, --samples, --prompt and --repeats must be at least 1, --new at least 2"
        )
    console, about = make_console(), machine.describe()
    console.print(machine.headline(about), highlight=False)
    model = sizes.build(options.size, bf16=False)
    shape = (options.prompts, options.prompt)
    prompts = np.random.default_rng(1).integers(0, model.config.vocab_size, shape).astype(np.int32)
    company = machine.Company()
    records = measure(model, prompts, options.samples, options.new, options.repeats)
    about["used_by_others"] = company.share()
    console.print(report.table(f"{options.size}, prompts shared and copied", records, LINES))
    console.print(machine.company_line(about), highlight=False)
    settings = {"size": options.size, "repeats": options.repeats}
    report.write(
        options.output,
        {"benchmark": "sample_prefix", "machine": about, "settings": settings, "results": records},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
