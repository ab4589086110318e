"""Speed of the sampler: tokens/s beside the machine's matmul peak and copy bandwidth, compile
time apart.

    python benchmarks/sample.py                                       # 4.0M parameters, 32 rows of
    64 + 64 tokens, 1 and 8 a prompt python benchmarks/sample.py --model models/smollm2-135m --rows
    8 --sizes python benchmarks/sample.py --output benchmarks/results/sample.json python
    benchmarks/sample.py --sizes 1.5B --bf16 --rows 256 --samples 8 --prompt 256 --new 128 --repeats
    5 --output benchmarks/results/sample_h200.json python benchmarks/sample.py --sizes 1.5B-2-layers
    --bf16 --rows 4 --samples 2 --prompt 16 --new 8 --repeats 2    # the same, small, on a CPU

    python benchmarks/sample.py --weights float32 bfloat16 int8    # rounded weights, in turns

The one of 256 rows is for an accelerator: Qwen2.5-1.5B's shape in bfloat16, to be held against
`memory floor / decode`; most of its minutes go into compiling.

Timed is a whole `sampling.sample` call on one device: prefill, then one decode step a token, no
completion ending early. With K samples a prompt, a prompt is computed and cached once for its K
rows. In the same round the same programs are run with a clock between them: `prefill` is what
passes until the first token of every row is drawn, `decode` the steps after it. Counted are

- tokens: those generated;
- bytes of the weights: of the layers and the head, as they are stored between calls (on a CPU the
  programs of rounded weights convert them once before their loop, so a step reads the wide ones);
- FLOPs: `ModelConfig.flops_per_token` of every prompt token (the head only on the last) and of
  every token decoded, at its context;
- the fraction of peak: those FLOPs a second over what a large square product reached right before,
  in the same round;
- the floor, a prediction of the least time: the prefill's FLOPs at that peak, then for each decode
  step the larger of its FLOPs at the peak and its bytes (the weights as stored, and the filled part
  of the KV cache) at the bandwidth of a copy as large as the weights. Weights that fit a cache are
  copied there too. Reading alone may be faster than copying, so a share above 100% is possible.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import machine
import numpy as np
import report
import sizes
from sample_run import taken

from grre_jax import sampling
from grre_jax.console import make_console
from grre_jax.errors import DataError
from grre_jax.models import Transformer
from grre_jax.sampling.config import WEIGHT_DTYPES


@dataclasses.dataclass(frozen=True)
class Data:
    """What is sampled.

    Args:
        rows: completions decoded side by side.
        samples: completions a prompt (K); divides rows.
        prompt_tokens, new_tokens: length of every prompt and of every completion.
    """

    rows: int
    samples: int
    prompt_tokens: int
    new_tokens: int


class Workload:
    """A compiled sampling call.

    Args:
        name: for the table.
        model: the policy.
        data: what is sampled.
        weight_dtype: as for `sampling.prepared`; weights are prepared before the clock.

    Attributes:
        call: samples once.
        apart: the same, with a clock between prefill and decode.
        tokens, prefill_flops, step_flops, step_bytes: as counted above; a step is one decode step
            of all rows.
        steps: decode steps; the first token comes from the prefill.
        weight_bytes: of the layers and the head, as stored.
        first_call_seconds: of the call that traces and compiles.
    """

    def __init__(self, name: str, model: Transformer, data: Data, weight_dtype: str = ""):
        config, prompts = model.config, data.rows // data.samples
        self.name, self.config, self.data = f"{name}, K={data.samples}", config, data
        self.tokens, self.steps = data.rows * data.new_tokens, data.new_tokens - 1

        head = 2.0 * config.vocab_size * config.hidden_size
        prompt_flops = config.flops_per_token((data.prompt_tokens + 1) / 2) - head
        self.prefill_flops = prompts * (data.prompt_tokens * prompt_flops + head)
        # Decode step t = 1, 2, ... attends to the prompt and to t tokens of its own, itself
        # included.
        filled = (1 + self.steps) / 2
        self.step_flops = data.rows * config.flops_per_token(data.prompt_tokens + filled)
        width = (model.compute_dtype or model.embed[...].dtype).itemsize
        token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * width
        weights = sampling.prepared(model, weight_dtype)
        self.weight_bytes = sum(weights.bytes_by_dtype.values())
        self.step_bytes = self.weight_bytes + token_bytes * (
            prompts * data.prompt_tokens + data.rows * filled
        )

        shape = (prompts, data.prompt_tokens)
        tokens = jax.random.randint(jax.random.key(1), shape, 0, config.vocab_size)
        lengths, key = np.full(prompts, data.prompt_tokens, np.int32), jax.random.key(2)

        def call():
            samples = sampling.sample(
                weights,
                tokens,
                sampling.SamplingParams(max_new_tokens=data.new_tokens),
                key=key,
                group_size=data.samples,
                prompt_lengths=lengths,
                eos_ids=(),
            )
            return jax.block_until_ready(samples)

        self.call, self.apart = (
            call,
            partial(
                taken, weights, tokens, group_size=data.samples, max_new_tokens=data.new_tokens
            ),
        )
        self.first_call_seconds = machine.first_call(call)

    @property
    def flops(self) -> float:
        """Of the whole call."""
        return self.prefill_flops + self.steps * self.step_flops


def measure(
    workloads: Sequence[Workload], peak: machine.Probe, repeats: int, seconds: float
) -> list[report.Record]:
    """Times every workload in turns with the machine; arguments and result as in train_step.py."""
    copies = [machine.copy_probe(work.weight_bytes, seconds / 4) for work in workloads]
    calls = [machine.calls_for(work.call, seconds) for work in workloads]
    rounds: list[list[tuple[float, ...]]] = [[] for _ in workloads]
    for _ in range(repeats):
        for i, work in enumerate(workloads):
            peak_rate, whole = peak.rate(), machine.timed(work.call, calls[i])
            parts = [work.apart() for _ in range(calls[i])]
            prefill, decode = (
                np.mean([getattr(part, name) for part in parts])
                for name in ("prefill_seconds", "decode_seconds")
            )
            rounds[i].append((peak_rate, whole, prefill, decode, copies[i].rate()))
    return [
        _record(work, *np.array(of_work).T) for work, of_work in zip(workloads, rounds, strict=True)
    ]


def _record(
    work: Workload,
    peaks: np.ndarray,
    times: np.ndarray,
    prefills: np.ndarray,
    decode: np.ndarray,
    bandwidths: np.ndarray,
) -> report.Record:
    memory = work.step_bytes / bandwidths
    floor = work.prefill_flops / peaks + work.steps * np.maximum(work.step_flops / peaks, memory)
    return {
        "name": work.name,
        "parameters": work.config.num_parameters,
        **dataclasses.asdict(work.data),
        "tokens": work.tokens,
        "flops": work.flops,
        "prefill_flops": work.prefill_flops,
        "decode_step_flops": work.step_flops,
        "decode_step_bytes": work.step_bytes,
        "weight_bytes": work.weight_bytes,
        "compile_seconds": work.first_call_seconds - float(np.median(times)),
        "call_seconds": report.spread(times),
        "prefill_seconds": report.spread(prefills),
        "decode_step_seconds": report.spread(decode / work.steps),
        "seconds_per_token_of_a_row": report.spread(times / work.data.new_tokens),
        "tokens_per_second": report.spread(work.tokens / times),
        "flops_per_second": report.spread(work.flops / times),
        "matmul_flops_per_second": report.spread(peaks),
        "copy_bytes_per_second": report.spread(bandwidths),
        "fraction_of_peak": report.spread(work.flops / times / peaks),
        "memory_floor_seconds": report.spread(work.steps * memory),
        "fraction_of_memory_floor": report.spread(work.steps * memory / times),
        "decode_fraction_of_memory_floor": report.spread(work.steps * memory / decode),
        "floor_seconds": report.spread(floor),
        "fraction_of_floor": report.spread(floor / times),
    }


LINES = {
    "parameters": lambda r: f"{r['parameters']:,}",
    "rows x (prompt + new) tokens": lambda r: (
        f"{r['rows']} x ({r['prompt_tokens']} + {r['new_tokens']})"
    ),
    "MFLOPs a decode step": lambda r: f"{r['decode_step_flops'] / 1e6:,.1f}",
    "MB of weights": lambda r: f"{r['weight_bytes'] / 1e6:,.1f}",
    "MB a decode step": lambda r: f"{r['decode_step_bytes'] / 1e6:,.1f}",
    "compile s (first call less a later one)": lambda r: f"{r['compile_seconds']:.1f}",
    "call ms": report.written("call_seconds", ".1f", 1e3),
    "prefill ms": report.written("prefill_seconds", ".1f", 1e3),
    "decode ms a step": report.written("decode_step_seconds", ".2f", 1e3),
    "ms a token of a row": report.written("seconds_per_token_of_a_row", ".2f", 1e3),
    "*tokens/s": report.written("tokens_per_second", ",.0f"),
    "GFLOP/s": report.written("flops_per_second", ",.1f", 1e-9),
    "matmul peak, GFLOP/s": report.written("matmul_flops_per_second", ",.1f", 1e-9),
    "*fraction of peak": report.written("fraction_of_peak", ".1%"),
    "copy GB/s": report.written("copy_bytes_per_second", ",.1f", 1e-9),
    "memory floor, ms": report.written("memory_floor_seconds", ".1f", 1e3),
    "*memory floor / call": report.written("fraction_of_memory_floor", ".1%"),
    "*memory floor / decode": report.written("decode_fraction_of_memory_floor", ".1%"),
    "predicted floor, ms": report.written("floor_seconds", ".1f", 1e3),
    "floor / call": report.written("fraction_of_floor", ".1%"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table and writes the JSON; returns the exit status."""
    parser = report.parser(__doc__)
    parser.add_argument(
        "--sizes",
        nargs="*",
        choices=list(sizes.SHAPES),
        default=["4M"],
        help="new models (default: 4M)",
    )
    report.number(parser, "--rows", 32, "completions decoded side by side")
    report.number(parser, "--samples", [1, 8], "completions a prompt", "K")
    report.number(parser, "--prompt", 64, "length of the prompts", "TOKENS")
    report.number(parser, "--new", 64, "length of the completions, at least 2", "TOKENS")
    parser.add_argument(
        "--weights",
        nargs="+",
        choices=["float32", "bfloat16", *WEIGHT_DTYPES],
        help="activations in float32 or bfloat16, or rounded weights under --bf16's activations"
        " (default: --bf16's)",
    )
    options = parser.parse_args(arguments)
    if any(k < 1 or options.rows % k for k in options.samples):
        parser.error(
            f"--samples {' '.join(map(str, options.samples))}: each must divide --rows"
            f" {options.rows}"
        )
    if options.new < 2 or options.prompt < 1:
        parser.error(f"--prompt {options.prompt} --new {options.new}: at least 1 and 2")
    console, about = make_console(), machine.describe()
    console.print(machine.headline(about), highlight=False)
    activations = "bfloat16" if options.bf16 else "float32"
    policies = []
    try:
        for weights in options.weights or [activations]:
            rounded = weights if weights in WEIGHT_DTYPES else ""
            bf16 = (activations if rounded else weights) == "bfloat16"
            made = [(name, sizes.build(name, bf16)) for name in options.sizes]
            if options.model:
                made += [(options.model.resolve().name, sizes.load(options.model, bf16))]
            policies += [
                (f"{name}, {weights}" if options.weights else name, model, rounded)
                for name, model in made
            ]
    except DataError as error:
        console.print(f"error: {error}", highlight=False)
        return error.exit_status
    data = [Data(options.rows, k, options.prompt, options.new) for k in options.samples]
    workloads = [
        Workload(name, model, of, rounded) for name, model, rounded in policies for of in data
    ]
    dtype, size = jnp.dtype(activations), options.matmul or machine.default_matmul_size()
    company = machine.Company()
    records = measure(
        workloads,
        machine.matmul_probe(size, dtype, options.seconds),
        options.repeats,
        options.seconds,
    )
    about["used_by_others"] = company.share()
    console.print(
        report.table(f"Sampler, {dtype.name}, beside products of {size} x {size}", records, LINES)
    )
    console.print(machine.company_line(about), highlight=False)
    settings = {
        "dtype": dtype.name,
        "repeats": options.repeats,
        "seconds": options.seconds,
        "matmul_size": size,
    }
    report.write(
        options.output,
        {"benchmark": "sample", "machine": about, "settings": settings, "results": records},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
