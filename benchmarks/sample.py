"""Speed of the sampler: tokens/s beside the machine's matmul peak and copy bandwidth, compile
time apart.

    python benchmarks/sample.py                                # 4.0M parameters, 32 rows of 64 + 64
    python benchmarks/sample.py --model models/smollm2-135m --rows 8 --sizes
    python benchmarks/sample.py --output benchmarks/results/sample.json

Timed is a whole `sampling.sample` call on one device: prefill, then one decode step a token, no
completion ending early. With K samples a prompt, a prompt is computed and cached once for its K
rows. In the same round the same programs are run with a clock between them: `prefill` is what
passes until the first token of every row is drawn, `decode` the steps after it. Counted are

- tokens: those generated;
- bytes of the weights: of the layers and the head;
- FLOPs: `sizes.flops_per_token` of every prompt token (the head only on the last) and of
  every token decoded, at its context;
- the fraction of peak: those FLOPs a second over what a large square product reached right before,
  in the same round;
- the floor, a prediction of the least time: the prefill's FLOPs at that peak, then for each decode
  step the larger of its FLOPs at the peak and its bytes (the weights and the filled part
  of the KV cache) at the bandwidth of a copy as large as the weights. Weights that fit a cache are
  copied there too. Reading alone may be faster than copying, so a share above 100% is possible.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence

import jax
import machine
import numpy as np
import report
import sizes

from grre_jax import sampling
from grre_jax.models import Transformer
from grre_jax.sampling.prompt_batch import make_prompt_batch


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

    Attributes:
        call: samples once.
        tokens, prefill_flops, step_flops, step_bytes: as counted above; a step is one decode step
            of all rows.
        steps: decode steps; the first token comes from the prefill.
        bytes: of the weights of layers and head.
        first_call_seconds: of the call that traces and compiles.
    """

    def __init__(self, name: str, model: Transformer, data: Data):
        config = model.config
        prompts = data.rows // data.samples
        self.name = f"{name}, K={data.samples}"
        self.config = config
        self.data = data
        self.tokens = data.rows * data.new_tokens
        self.steps = data.new_tokens - 1

        head = 2.0 * config.vocab_size * config.hidden_size
        prompt_flops = sizes.flops_per_token(config, (data.prompt_tokens + 1) / 2) - head
        self.prefill_flops = prompts * (data.prompt_tokens * prompt_flops + head)
        # Decode step t = 1, 2, ... attends to the prompt and to t tokens of its own, itself
        # included.
        filled = (1 + self.steps) / 2
        self.step_flops = data.rows * sizes.flops_per_token(config, data.prompt_tokens + filled)
        width = (model.compute_dtype or model.embed[...].dtype).itemsize
        token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * width
        self._weights = sampling.prepared(model)
        read = jax.tree.leaves((self._weights.layers, self._weights.head))
        self.bytes = sum(x.nbytes for x in read)
        cached = prompts * data.prompt_tokens + data.rows * filled
        self.step_bytes = self.bytes + token_bytes * cached

        self._prompts = jax.random.randint(
            jax.random.key(1), (prompts, data.prompt_tokens), 0, config.vocab_size
        )
        self._options = {
            "key": jax.random.key(2),
            "group_size": data.samples,
            "prompt_lengths": [data.prompt_tokens] * prompts,
            "eos_ids": (),
        }
        self._params = sampling.SamplingParams(max_new_tokens=data.new_tokens)
        self.first_call_seconds = machine.first_call(self.call)

    def call(self) -> sampling.Samples:
        """Samples once."""
        return jax.block_until_ready(
            sampling.sample(self._weights, self._prompts, self._params, **self._options)
        )

    def apart(self) -> tuple[float, float]:
        """Seconds of the same call until the first tokens are drawn, and from there on."""
        moments = [time.perf_counter()]
        batch = make_prompt_batch(
            self._weights.model.config,
            self._prompts,
            max_new_tokens=self._params.max_new_tokens,
            **self._options,
        )
        distribution = sampling.SamplingDistribution.of(self._params)
        for trace in sampling.SamplerCall(self._weights, batch, distribution):
            jax.block_until_ready(trace)
            moments.append(time.perf_counter())
        return moments[1] - moments[0], moments[-1] - moments[1]

    def times(self, count: int) -> dict[str, float]:
        """Seconds of a call, of its prefill and of its decode steps."""
        whole = machine.timed(self.call, count)
        prefill, decode = np.mean([self.apart() for _ in range(count)], axis=0)
        return {"call": whole, "prefill": prefill, "decode": decode}

    @property
    def flops(self) -> float:
        """Of the whole call."""
        return self.prefill_flops + self.steps * self.step_flops


def record(work: Workload, times: dict[str, np.ndarray]) -> report.Record:
    """What is written of a workload's rounds."""
    calls = times["call"]
    peaks = times["peak"]
    memory = work.step_bytes / times["copy"]
    return {
        "name": work.name,
        "parameters": work.config.num_parameters,
        **dataclasses.asdict(work.data),
        "tokens": work.tokens,
        "flops": work.flops,
        "prefill_flops": work.prefill_flops,
        "decode_step_bytes": work.step_bytes,
        "weight_bytes": work.bytes,
        "compile_seconds": work.first_call_seconds - float(np.median(calls)),
        "call_seconds": report.spread(calls),
        "prefill_seconds": report.spread(times["prefill"]),
        "decode_step_seconds": report.spread(times["decode"] / work.steps),
        "tokens_per_second": report.spread(work.tokens / calls),
        "matmul_flops_per_second": report.spread(peaks),
        "copy_bytes_per_second": report.spread(times["copy"]),
        "fraction_of_peak": report.spread(work.flops / calls / peaks),
        "fraction_of_memory_floor": report.spread(work.steps * memory / calls),
        "decode_fraction_of_memory_floor": report.spread(work.steps * memory / times["decode"]),
    }


LINES = {
    "parameters": lambda r: f"{r['parameters']:,}",
    "rows x (prompt + new) tokens": lambda r: (
        f"{r['rows']} x ({r['prompt_tokens']} + {r['new_tokens']})"
    ),
    "MB of weights": lambda r: f"{r['weight_bytes'] / 1e6:,.1f}",
    "compile s (first call less a later one)": lambda r: f"{r['compile_seconds']:.1f}",
    "call ms": report.written("call_seconds", ".1f", 1e3),
    "prefill ms": report.written("prefill_seconds", ".1f", 1e3),
    "decode ms a step": report.written("decode_step_seconds", ".2f", 1e3),
    "*tokens/s": report.written("tokens_per_second", ",.0f"),
    "matmul peak, GFLOP/s": report.written("matmul_flops_per_second", ",.1f", 1e-9),
    "*fraction of peak": report.written("fraction_of_peak", ".1%"),
    "copy GB/s": report.written("copy_bytes_per_second", ",.1f", 1e-9),
    "*memory floor / call": report.written("fraction_of_memory_floor", ".1%"),
    "*memory floor / decode": report.written("decode_fraction_of_memory_floor", ".1%"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table and writes the JSON; returns the exit status."""
    parser = report.own_parser(__doc__)
    names = list(sizes.SHAPES)
    parser.add_argument("--sizes", nargs="*", choices=names, default=["4M"], help="new models")
    report.number(parser, "--rows", 32, "completions decoded side by side")
    report.number(parser, "--samples", [1, 8], "completions a prompt")
    report.number(parser, "--prompt", 64, "tokens of a prompt")
    report.number(parser, "--new", 64, "tokens of a completion, at least 2")
    options = parser.parse_args(arguments)
    if any(k < 1 or options.rows % k for k in options.samples):
        parser.error(f"--samples: expected divisors of --rows {options.rows}")
    if options.new < 2 or options.prompt < 1:
        parser.error("--prompt: expected at least 1, and --new at least 2")

    def workloads() -> list[Workload]:
        data = [Data(options.rows, k, options.prompt, options.new) for k in options.samples]
        models = {name: sizes.build(name, options.bf16) for name in options.sizes}
        if options.model:
            models[options.model.resolve().name] = sizes.build(options.model, options.bf16)
        return [Workload(name, model, one) for name, model in models.items() for one in data]

    return report.run("sample", options, workloads, record, LINES)


if __name__ == "__main__":
    sys.exit(main())
