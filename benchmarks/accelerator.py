"""One accelerator in minutes: what it multiplies and copies, how near attention, train step and
sampler come to that, and a complete run.

    python benchmarks/accelerator.py --minutes 8                      # accelerator.json and a table
    python benchmarks/accelerator.py --model models/smollm2-135m      # a run of SmolLM2 too
    python benchmarks/accelerator.py --parts decode --rows 32 2048

Every part is a process of its own, so one that ends (memory, a compiler, a signal) costs its own
unfinished cases alone, and gives all memory back. The result is written after every part. A part with less time left than it needs at least is skipped, and so is a
case when an earlier one of its part took longer than what is left; what runs at the end of the
minutes is stopped. Exit status: 0 if everything was measured, 1 if anything failed, 3 if nothing
failed and something was left out.

- machine: products of two square matrices, and a copy (read + written).
- attention: the layer's attention, forward and backward, on rows with a shared prompt and on rows
  without. Parity: the largest error of output and gradients, over the largest entry, against a
  dense softmax in float32; at most four times that of blocks of queries in the same dtype.
- train: the step on full rows, its FLOPs as in train_step.py over the rate of the product.
- decode: as in sample.py, the bytes of a step at the rate of the copy over the time of the step.
- run, run-model: configs/arithmetic.py and configs/smollm2_arithmetic.py from beginning to end,
  with seconds by part; "rest" is compiling, warm start, evaluations, checkpoints and the report.

Rates of the machine are timed in the same rounds as what is held against them. The shape is the
largest whose train state and rows of 2,048 tokens fit in the memory, in bfloat16; on a CPU it is
"4M", in float32 unless --bf16.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
import report
import sample
import sizes
import train_step
from attention_kernels import Kernels, visibility
from flax import nnx
from parts import Cases, launched, left_out, work
from rich.table import Table
from rich.text import Text

from grre_jax.allocation import keep_freed_memory
from grre_jax.config import load_file
from grre_jax.console import make_console
from grre_jax.models import Transformer
from grre_jax.storage.files import replace
from grre_jax.training import loop
from grre_jax.training.actors.calls import device_bytes
from grre_jax.training.config.run import override

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
LARGE = ("1.5B", "0.5B")  # in rows of 2,048 tokens
STATE_BYTES = 20  # a parameter: itself, its gradient, two moments, the model that it came from
PARITY = 4.0  # times the error of blocks, whose arithmetic is plain JAX in the same dtype
REMAT = "projections"  # keeps the products' results: (3 hidden + qkv + 2 intermediate) a token
DECODED = (256, 64)  # tokens of a prompt, of a completion
DECODE_FIGURES = (
    "compile_seconds",
    "weight_bytes",
    "decode_step_bytes",
    "decode_step_seconds",
    "tokens_per_second",
    "decode_fraction_of_memory_floor",
)


def row_bytes(shape: str, tokens: int) -> float:
    """Bytes that the backward pass keeps of a row in bfloat16."""
    config = sizes.SHAPES[shape]
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    kept = 3 * config.hidden_size + qkv + 2 * config.intermediate_size
    return 2.0 * config.num_layers * kept * tokens


def fitted(options: argparse.Namespace) -> tuple[str, train_step.Data]:
    """The shape and its data for the train step: as many rows of 2,048 tokens as fit, at most 8."""
    memory = 0.9 * (device_bytes() or 0)
    for shape in LARGE:
        left = memory - STATE_BYTES * sizes.SHAPES[shape].num_parameters
        rows = int(min(left / row_bytes(shape, 2048), 8))
        wanted = shape == options.shape or not options.shape and jax.default_backend() != "cpu"
        if wanted and (rows > 0 or options.shape):
            return shape, train_step.Data(max(rows, 1), 8, 256, 224)
    shape = options.shape or "4M"
    return shape, train_step.DATA[shape]


def dtype_of(options: argparse.Namespace) -> Any:
    """Of the activations."""
    wide = jax.default_backend() == "cpu" and not options.bf16
    return jnp.dtype("float32" if wide else "bfloat16")


def product(options: argparse.Namespace) -> machine.Probe:
    """The rate that FLOPs are held against."""
    size = options.matmul or machine.default_matmul_size()
    return machine.matmul_probe(size, dtype_of(options), options.seconds)


def rounds(options: argparse.Namespace, **calls: Callable[[], Any]) -> dict[str, np.ndarray]:
    """Seconds a call by name, and the FLOP/s of the product, timed in the same rounds."""
    peak = product(options)
    times = machine.in_turns(calls | {"product": peak.call}, options.repeats, options.seconds)
    return times | {"product": peak.work / times["product"]}


def machine_cases(options: argparse.Namespace) -> Cases:
    """Products in both dtypes, and a copy of an eighth of the memory, at most 1 GiB."""
    for dtype in dict.fromkeys((dtype_of(options), jnp.dtype("float32"))):
        size = options.matmul or machine.default_matmul_size()
        probe = partial(machine.matmul_probe, size, dtype, options.seconds)
        name = f"product of {size} x {size}, {dtype.name}"
        yield name, partial(rates, "flops_per_second", probe, options.repeats)
    size = int(min((device_bytes() or 1 << 30) // 8, 1 << 30))
    if options.shape == "tiny":
        size = machine.SMALLEST_COPY
    probe = partial(machine.copy_probe, size, options.seconds)
    yield f"copy of {size >> 20} MiB", partial(rates, "bytes_per_second", probe, options.repeats)


def rates(name: str, make: Callable[[], machine.Probe], repeats: int) -> report.Record:
    """The rate of a probe, in rounds."""
    probe = make()
    return {name: report.spread(probe.rate() for _ in range(repeats))}


def attend(
    options: argparse.Namespace, shape: str, data: train_step.Data, shared: bool
) -> report.Record:
    """Parity and speed of the kernel that these rows get."""
    rows = visibility(
        min(data.groups, 4), data.samples, data.prompt_tokens, data.new_tokens, shared=shared
    )
    kernels = Kernels(sizes.SHAPES[shape], rows, dtype_of(options))
    own, blocks = kernels.errors()
    times = rounds(options, own=kernels.own, blocks=kernels.blocks)
    apart = {} if own <= PARITY * blocks else {"status": "failed", "reason": "no parity"}
    return apart | {
        "kernel": kernels.name,
        "error": own,
        "error_of_blocks": blocks,
        "seconds": report.spread(times["own"]),
        "fraction_of_product": report.spread(kernels.flops / times["own"] / times["product"]),
        "speed_over_blocks": report.spread(times["blocks"] / times["own"]),
    }


def attention_cases(options: argparse.Namespace) -> Cases:
    """Rows with and without a shared prompt."""
    shape, data = fitted(options)
    size = f"{shape}, {data.prompt_tokens} + {data.samples} x {data.new_tokens} tokens"
    yield f"prompt shared, {size}", partial(attend, options, shape, data, True)
    yield f"sequences apart, {size}", partial(attend, options, shape, data, False)


def build(options: argparse.Namespace, shape: str) -> Transformer:
    """A new model with float32 parameters and the activations' dtype."""
    return Transformer(
        sizes.SHAPES[shape],
        rngs=nnx.Rngs(params=0),
        compute_dtype=dtype_of(options),
        remat="none" if jax.default_backend() == "cpu" else REMAT,
    )


def train(options: argparse.Namespace, shape: str, data: train_step.Data) -> report.Record:
    """The train step beside the product."""
    work = train_step.Workload(shape, build(options, shape), data)
    times = rounds(options, step=work.call)
    return {
        "parameters": work.config.num_parameters,
        "rows": work.rows,
        "compile_seconds": work.compile_seconds,
        "seconds": report.spread(times["step"]),
        "tokens_per_second": report.spread(work.tokens / times["step"]),
        "fraction_of_product": report.spread(work.flops / times["step"] / times["product"]),
    }


def train_cases(options: argparse.Namespace) -> Cases:
    """One step."""
    shape, data = fitted(options)
    length = data.shape().pack_length
    yield f"{shape}, {data.groups} x {length}", partial(train, options, shape, data)


def decode(options: argparse.Namespace, shape: str, model: Transformer, rows: int) -> report.Record:
    """A call of the sampler, eight completions a prompt where that divides the rows."""
    prompt, new = (3, 4) if shape == "tiny" else DECODED
    data = sample.Data(rows, 1 if rows % 8 else 8, prompt, new)
    work = sample.Workload(shape, model, data)
    (times,) = machine.rounds([work], product(options), options.repeats, options.seconds)
    found = sample.record(work, times)
    return {name: found[name] for name in DECODE_FIGURES}


def decode_cases(options: argparse.Namespace) -> Cases:
    """Calls of the sampler, by rows."""
    shape, _ = fitted(options)
    model = build(options, shape)
    for rows in options.rows:
        yield f"{shape}, {rows} rows", partial(decode, options, shape, model, rows)


def rl_run(file: str, *words: str) -> report.Record:
    """A configuration from beginning to end, with fields overridden as on the command line."""
    start, config = time.monotonic(), load_file(CONFIGS / file)
    with tempfile.TemporaryDirectory() as folder:
        run = loop.train(override(config, ["--run_dir", f"{folder}/run", *words]))
        summary = json.loads((run / "summary.json").read_text())["runs"][0]
    whole = time.monotonic() - start
    by_part = summary["seconds"]
    return {
        "steps": summary["steps"],
        "whole_seconds": whole,
        "seconds_by_part": by_part | {"rest": whole - sum(by_part.values())},
        "greedy_accuracy": summary["greedy_accuracy"][-1]["value"],
    }


def run_cases(options: argparse.Namespace) -> Cases:
    """The embedded default; `--steps` cuts its warm start short too."""
    fewer = [f"--{part}.steps={options.steps}" for part in ("training", "warm_start")]
    yield "configs/arithmetic.py", partial(rl_run, "arithmetic.py", *fewer * bool(options.steps))


def run_model_cases(options: argparse.Namespace) -> Cases:
    """The pretrained model of --model."""
    words = [f"--model.path={options.model.resolve()}"]
    words += [f"--model.compute_dtype={dtype_of(options).name}"]
    words += [f"--training.steps={options.steps}"] * bool(options.steps)
    name = f"configs/smollm2_arithmetic.py, {options.model.resolve().name}"
    yield name, partial(rl_run, "smollm2_arithmetic.py", *words)


PARTS: dict[str, Callable[[argparse.Namespace], Cases]] = {
    "machine": machine_cases,
    "attention": attention_cases,
    "train": train_cases,
    "decode": decode_cases,
    "run": run_cases,
    "run-model": run_model_cases,
}
START_SECONDS = 10  # that a part needs at least


def spread(form: str, unit: str, scale: float = 1.0) -> Callable[[dict[str, float]], str]:
    """How the table writes the rounds of a figure."""
    return lambda found: f"{report.Spread(**found).written(form, scale)} {unit}"


FIGURES: dict[str, Callable[[Any], str]] = {
    "flops_per_second": spread(",.1f", "GFLOP/s", 1e-9),
    "bytes_per_second": spread(",.1f", "GB/s", 1e-9),
    "kernel": "kernel: {}".format,
    "error": "largest error {:.1e}".format,
    "error_of_blocks": "that of blocks {:.1e}".format,
    "seconds": spread(",.3f", "ms", 1e3),
    "fraction_of_product": spread(".1%", "of the product"),
    "speed_over_blocks": spread(".2f", "times as fast as blocks"),
    "decode_step_seconds": spread(",.3f", "ms a step", 1e3),
    "decode_fraction_of_memory_floor": spread(".1%", "memory floor / decode"),
    "tokens_per_second": spread(",.0f", "tokens/s"),
    "whole_seconds": "{:.0f} s".format,
    "seconds_by_part": lambda x: ", ".join(f"{name} {value:.1f}" for name, value in x.items()),
    "greedy_accuracy": "greedy accuracy {:.1%}".format,
    "reason": str,
}


def table(records: Sequence[report.Record]) -> Table:
    """A line a case."""
    result = Table(
        "part", "case", "", "measured", caption="median (smallest - largest) of the rounds"
    )
    for record in records:
        told = [form(record[name]) for name, form in FIGURES.items() if name in record]
        cells = (record["part"], record["name"], record["status"], Text("\n".join(told)))
        result.add_row(*cells)
    return result


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked; ends with a message where it makes no sense."""
    parser = report.own_parser(__doc__)
    parser.set_defaults(repeats=3, output=Path("accelerator.json"))
    parser.add_argument("--minutes", type=float, default=8, help="for all parts (default 8)")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), help="(default: all)")
    parser.add_argument("--shape", choices=[*LARGE, "4M", "tiny"], help="(default: by the memory)")
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[32, 256, 1024],
        help="completions decoded side by side (default 32 256 1024)",
    )
    parser.add_argument("--steps", type=int, help="of the runs (default: those of the files)")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)  # name, answers, seconds
    options = parser.parse_args(arguments)
    if options.model is None and "run-model" in (options.parts or ()):
        parser.error("--parts run-model needs a model: add --model FOLDER")
    options.parts = options.parts or [p for p in PARTS if p != "run-model" or options.model]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures part by part, writes the JSON after each and prints the table; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = options_of(arguments)
    if options.part:
        keep_freed_memory()  # as grre does
        part, answers, left = options.part
        work(part, partial(PARTS[part], options), Path(answers), float(left))
        return 0
    deadline, company = time.monotonic() + 60 * options.minutes, machine.Company()
    console, records = make_console(), []
    asked = {k: v for k, v in vars(options).items() if k not in ("part", "model", "output")}
    result = {"benchmark": "accelerator", "machine": {}, "settings": asked, "results": records}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), *arguments, "--part"]
    for part in options.parts:
        left = deadline - time.monotonic()
        console.print(f"{part}: {left:.0f} s are left", highlight=False)
        if left < START_SECONDS:
            records.append(left_out(part, "", f"{left:.0f} s were left"))
        else:
            for found in launched(command, part, left):
                result["machine"] |= found.pop("machine", {})
                records += [found] * bool(found)
        result["machine"]["used_by_others"] = company.share()
        replace(options.output, json.dumps(result, indent=2) + "\n")
    if "cpu" in result["machine"]:
        console.print(machine.headline(result["machine"]), highlight=False)
    console.print(table(records))
    states = {record["status"] for record in records}
    return 1 if "failed" in states else 3 if "skipped" in states else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a part's process ends too
    sys.exit(main())
