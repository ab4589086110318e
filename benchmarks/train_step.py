"""Speed of the real train step: tokens/s beside the machine's matmul peak, compile time apart.

    python benchmarks/train_step.py                                   # the embedded default and
    4.0M parameters python benchmarks/train_step.py --model models/smollm2-135m       # a pretrained
    model too python benchmarks/train_step.py --sizes ragged padded             # completions of
    many lengths: packed, and a row each python benchmarks/train_step.py --sizes 1.5B --bf16
    # Qwen2.5-1.5B's shape, packed rows of 2,048 tokens, on an accelerator python
    benchmarks/train_step.py --output benchmarks/results/train_step.json

The step is `training.step.make_train_step`'s, on what `training.data.pack` makes of synthetic
groups whose rows come out full, on one device. Counted are

- tokens: all that are not padding, a prompt once for all its completions (the logs of a run count
  completion tokens only);
- FLOPs: 3 x `ModelConfig.flops_per_token(context)` x tokens, with the context that the tokens
  really have, their mean position + 1. What the step computes beyond that (attention to what is
  masked, logits a second time in the backward pass) is its own loss;
- the fraction of peak: those FLOPs a second over what a large square product reached right before,
  in the same round;
- the fraction of the projections: the same over the rate of the step's own projection products,
  each timed alone in the same round (`projections.py`);
- metrics: the share of the step that entropy, ratios, KLs, quantiles and the other metrics take, by
  timing beside it the same step whose metrics nobody asks for (the compiler leaves them out);
- the floor, a prediction of the least time: FLOPs at that peak, then AdamW's traffic (parameters,
  gradients and both moments read, all but the gradients written: seven arrays) at the bandwidth of
  a copy as large as the parameters.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
import report
import sizes
from projections import Projections

from grre_jax import objectives, parallel
from grre_jax.allocation import keep_freed_memory
from grre_jax.console import make_console
from grre_jax.errors import DataError
from grre_jax.models import Transformer
from grre_jax.parallel import mesh as meshes
from grre_jax.rollouts import Group
from grre_jax.training import optimizer as training_optimizer
from grre_jax.training import state as training_state
from grre_jax.training.data.pack import BatchShape, PackedBatch, pack
from grre_jax.training.step import make_train_step

FLOPS = "3 x flops_per_token(context) x tokens"
OPTIMIZER_ARRAYS = 7  # of the parameters' size, read or written by an AdamW update


@dataclasses.dataclass(frozen=True)
class Data:
    """Synthetic groups.

    Args:
        groups: prompts a step.
        samples: completions a prompt.
        prompt_tokens, new_tokens: length of every prompt and of every completion.
        packs_per_microbatch: 0 for one micro-batch.
        pack_length: 0 for one whole group.
        mean_tokens: completions of geometric lengths with this mean under the limit of new_tokens;
            0 for all of new_tokens.
        pads: every completion in a row of its own behind a copy of its prompt, padded to the
            limits, instead of packed.
        model: the shape, if it is not named as the data is.
    """

    groups: int
    samples: int
    prompt_tokens: int
    new_tokens: int
    packs_per_microbatch: int = 0
    pack_length: int = 0
    mean_tokens: int = 0
    pads: bool = False
    model: str = ""

    def shape(self) -> BatchShape:
        """Of the step's batch."""
        if self.pads:
            rows = self.groups * self.samples
            micro = self.packs_per_microbatch or rows
            return BatchShape(
                rows,
                self.prompt_tokens + self.new_tokens,
                micro,
                -(-rows // micro),
                share_prompts=False,
            )
        return BatchShape.of_run(
            self.groups,
            self.samples,
            self.prompt_tokens,
            self.new_tokens,
            self.pack_length,
            self.packs_per_microbatch,
        )

    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """The step's batch.

        Padded, the rows are full for the packing: what makes them so counts for nothing.
        """
        if not self.pads:
            return pack(groups, self.shape())
        full = [dataclasses.replace(g, **_filled(g, self.new_tokens)) for g in groups]
        return pack(full, self.shape())


def _filled(group: Group, limit: int) -> dict[str, Any]:
    """Fields of the group with every completion filled up to the limit with tokens that are not
    trained on.
    """
    pieces = [
        np.split(x, np.cumsum(group.lengths)[:-1])
        for x in (group.tokens, group.mask, group.behavior_logprobs)
    ]
    tokens, mask, logprobs = (
        np.concatenate([np.pad(x, (0, limit - len(x))) for x in of_one]) for of_one in pieces
    )
    return {
        "tokens": tokens,
        "mask": mask,
        "behavior_logprobs": logprobs,
        "lengths": np.full(len(group.lengths), limit),
    }


DATA = {
    "embedded": Data(16, 8, 8, 6),  # arithmetic, short answers: 16 rows of 56 tokens
    "4M": Data(32, 8, 16, 14),  # 32 rows of 128 tokens
    "ragged": Data(
        2, 8, 64, 512, packs_per_microbatch=1, pack_length=576, mean_tokens=64, model="4M"
    ),
    "padded": Data(2, 8, 64, 512, packs_per_microbatch=4, mean_tokens=64, pads=True, model="4M"),
    "1.5B": Data(
        16, 8, 256, 224, packs_per_microbatch=8
    ),  # 16 rows of 2,048 tokens, each a whole group
    "1.5B-2-layers": Data(2, 8, 256, 224, packs_per_microbatch=1),
    "tiny": Data(2, 2, 3, 2),
    "tiny-ragged": Data(
        2, 2, 3, 6, packs_per_microbatch=1, pack_length=9, mean_tokens=3, model="tiny"
    ),
    "tiny-padded": Data(2, 2, 3, 6, packs_per_microbatch=2, mean_tokens=3, pads=True, model="tiny"),
}
MODEL_DATA = Data(
    8, 8, 48, 12
)  # a micro-batch of configs/smollm2_arithmetic.py: 8 rows of 144 tokens


def synthetic_groups(data: Data, vocab_size: int) -> list[Group]:
    """Groups of random tokens with mixed rewards, as if the uniform policy had sampled them."""
    generator, groups = np.random.default_rng(0), []
    for i in range(data.groups):
        lengths = np.full(data.samples, data.new_tokens)
        if data.mean_tokens:
            lengths = np.minimum(
                generator.geometric(1 / data.mean_tokens, data.samples), data.new_tokens
            )
        total = int(lengths.sum())
        groups.append(
            Group(
                group_id=f"synthetic:{i}",
                prompt="",
                texts=[""] * data.samples,
                rewards=np.arange(data.samples) % 2,
                prompt_tokens=generator.integers(vocab_size, size=data.prompt_tokens),
                lengths=lengths,
                tokens=generator.integers(vocab_size, size=total),
                behavior_logprobs=np.full(total, -np.log(vocab_size)),
            )
        )
    return groups


class Workload:
    """A compiled train step on its data.

    Args:
        name: for the table.
        model: the policy; its parameters are copied.
        data: what it trains on.
        bare: whether the step without metrics is compiled too, which needs a second train state.

    Attributes:
        call: makes one update.
        bare: the same without metrics; None if not asked for.
        rows: (micro-batches, rows, tokens a row).
        tokens, completion_tokens, context, flops: of one update, as counted above.
        sequence_tokens: tokens of the completions, each with its own prompt, without padding.
        efficiency: tokens over those of the rows that are computed.
        parameter_bytes: of all parameters.
        compile_seconds: tracing and compiling.
    """

    def __init__(self, name: str, model: Transformer, data: Data, bare: bool = True):
        self.name, self.config = name, model.config
        shape, groups = data.shape(), synthetic_groups(data, self.config.vocab_size)
        packed = data.pack(groups)
        self.rows = [shape.micro_batches, shape.rows, shape.pack_length]
        useful = pack(groups, shape)
        live = useful.segment_ids > 0
        self.tokens, self.completion_tokens = int(live.sum()), int(useful.mask.sum())
        # What separate sequences of prompt and completion would hold: the same count for every
        # layout.
        self.sequence_tokens = (
            self.completion_tokens + data.groups * data.samples * data.prompt_tokens
        )
        self.context = float((useful.positions[live] + 1).mean())
        self.flops = 3 * self.config.flops_per_token(self.context) * self.tokens
        filled = int(packed.mask.any(axis=(1, 2)).sum()) * shape.rows * shape.pack_length
        self.efficiency = self.tokens / filled

        mesh = parallel.make_mesh(parallel.MeshConfig(), devices=jax.devices()[:1])
        settings = training_optimizer.OptimizerConfig(learning_rate=1e-6)
        optimizer = training_optimizer.make_optimizer(settings)
        graph, state = training_state.create(model, optimizer, mesh)
        self.dtype = model.compute_dtype or jnp.dtype(jnp.float32)
        self.parameter_bytes = sum(x.nbytes for x in jax.tree.leaves(state.params))
        objective = objectives.algorithm("rec_oneside_nois", epsilon_low=0.6, epsilon_high=2.0)
        arguments = (
            jax.device_put(packed, meshes.replicated(mesh)),
            objective,
            np.float32(1.0),
            jax.random.key(0),
        )
        start = time.perf_counter()
        step = (
            make_train_step(graph, optimizer, settings.schedule())
            .lower(state, *arguments)
            .compile()
        )
        self.compile_seconds = time.perf_counter() - start
        self.call, self.bare = _updates(step, state, arguments), None
        machine.first_call(self.call)
        if not bare:
            return
        update = make_train_step(graph, optimizer, settings.schedule())

        def without_metrics(state, *arguments):
            state, metrics = update(state, *arguments)
            return state, {"loss": metrics["loss"]}

        _, state = training_state.create(model, optimizer, mesh)
        self.bare = _updates(jax.jit(without_metrics, donate_argnums=0), state, arguments)
        machine.first_call(self.bare)


def _updates(
    step: Callable[..., Any], state: training_state.TrainState, arguments: Sequence[Any]
) -> Callable[[], jax.Array]:
    """A call that makes one more update: each takes over the state that the last one returned."""
    held = [state]

    def call():
        held[0], metrics = step(held[0], *arguments)
        return metrics["loss"]

    return call


def measure(
    workloads: Sequence[Workload], peak: machine.Probe, repeats: int, seconds: float
) -> list[report.Record]:
    """Times every workload in turns with the machine.

    Args:
        workloads: what is timed.
        peak: the matmul.
        repeats: rounds.
        seconds: shortest timing of a workload in a round.

    Returns:
        One record a workload.
    """
    copies = [machine.copy_probe(work.parameter_bytes, seconds / 4) for work in workloads]
    alone = [
        Projections(work.config, work.rows[1] * work.rows[2], work.dtype, seconds)
        for work in workloads
    ]
    calls = [machine.calls_for(work.call, seconds) for work in workloads]
    rounds: list[list[tuple[float, ...]]] = [[] for _ in workloads]
    for _ in range(repeats):
        for i, work in enumerate(workloads):
            times = machine.timed(work.call, calls[i]), machine.timed(work.bare, calls[i])
            rounds[i].append((peak.rate(), *times, copies[i].rate(), alone[i].rate()))
    return [
        _record(work, *np.array(of_work).T) for work, of_work in zip(workloads, rounds, strict=True)
    ]


def _record(
    work: Workload,
    peaks: np.ndarray,
    times: np.ndarray,
    bare: np.ndarray,
    bandwidths: np.ndarray,
    alone: np.ndarray,
) -> report.Record:
    floor = work.flops / peaks + OPTIMIZER_ARRAYS * work.parameter_bytes / bandwidths
    return {
        "name": work.name,
        "parameters": work.config.num_parameters,
        "rows": work.rows,
        "tokens": work.tokens,
        "completion_tokens": work.completion_tokens,
        "sequence_tokens": work.sequence_tokens,
        "context": work.context,
        "flops": work.flops,
        "compile_seconds": work.compile_seconds,
        "step_seconds": report.spread(times),
        "without_metrics_fraction": report.spread(bare / times),
        "tokens_per_second": report.spread(work.tokens / times),
        "flops_per_second": report.spread(work.flops / times),
        "sequence_tokens_per_second": report.spread(work.sequence_tokens / times),
        "packing_efficiency": work.efficiency,
        "projections_flops_per_second": report.spread(alone),
        "fraction_of_projections": report.spread(work.flops / times / alone),
        "matmul_flops_per_second": report.spread(peaks),
        "copy_bytes_per_second": report.spread(bandwidths),
        "fraction_of_peak": report.spread(work.flops / times / peaks),
        "floor_seconds": report.spread(floor),
        "fraction_of_floor": report.spread(floor / times),
    }


LINES = {
    "parameters": lambda r: f"{r['parameters']:,}",
    "micro-batches x rows x tokens": lambda r: " x ".join(map(str, r["rows"])),
    "tokens a step (in completions)": lambda r: f"{r['tokens']:,} ({r['completion_tokens']:,})",
    "GFLOPs a step": lambda r: f"{r['flops'] / 1e9:.2f}",
    "compile s": lambda r: f"{r['compile_seconds']:.1f}",
    "step ms": report.written("step_seconds", ".2f", 1e3),
    "step without metrics / step": report.written("without_metrics_fraction", ".1%"),
    "*tokens/s": report.written("tokens_per_second", ",.0f"),
    "useful tokens/s, a prompt to each completion": report.written(
        "sequence_tokens_per_second", ",.0f"
    ),
    "packing efficiency": lambda r: f"{r['packing_efficiency']:.1%}",
    "GFLOP/s": report.written("flops_per_second", ",.1f", 1e-9),
    "matmul peak, GFLOP/s": report.written("matmul_flops_per_second", ",.1f", 1e-9),
    "*fraction of peak": report.written("fraction_of_peak", ".1%"),
    "own projections alone, GFLOP/s": report.written("projections_flops_per_second", ",.1f", 1e-9),
    "*fraction of the projections": report.written("fraction_of_projections", ".1%"),
    "copy GB/s": report.written("copy_bytes_per_second", ",.1f", 1e-9),
    "predicted floor, ms": report.written("floor_seconds", ".2f", 1e3),
    "floor / step": report.written("fraction_of_floor", ".1%"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table and writes the JSON; returns the exit status."""
    parser = report.parser(__doc__)
    parser.add_argument(
        "--sizes",
        nargs="*",
        choices=list(DATA),
        default=["embedded", "4M"],
        help="new models (default: embedded 4M)",
    )
    parser.add_argument(
        "--plain-malloc",
        action="store_true",
        help=(
            "leave the C library as it is, instead of having it keep freed memory as `grre train`"
            " does"
        ),
    )
    options = parser.parse_args(arguments)
    if not options.plain_malloc:
        keep_freed_memory()
    console, about = make_console(), machine.describe()
    console.print(machine.headline(about), highlight=False)
    try:
        loaded = (
            [(options.model.resolve().name, sizes.load(options.model, options.bf16), MODEL_DATA)]
            if options.model
            else []
        )
    except DataError as error:
        console.print(f"error: {error}", highlight=False)
        return error.exit_status
    workloads = [
        Workload(*of)
        for of in [
            (name, sizes.build(DATA[name].model or name, options.bf16), DATA[name])
            for name in options.sizes
        ]
        + loaded
    ]
    dtype, size = (
        jnp.dtype("bfloat16" if options.bf16 else "float32"),
        options.matmul or machine.default_matmul_size(),
    )
    company = machine.Company()
    records = measure(
        workloads,
        machine.matmul_probe(size, dtype, options.seconds),
        options.repeats,
        options.seconds,
    )
    about["used_by_others"] = company.share()
    console.print(
        report.table(
            f"Train step, {dtype.name}, beside products of {size} x {size}", records, LINES
        )
    )
    console.print(machine.company_line(about), highlight=False)
    settings = {
        "dtype": dtype.name,
        "repeats": options.repeats,
        "seconds": options.seconds,
        "matmul_size": size,
        "flops": FLOPS,
        "plain_malloc": options.plain_malloc,
    }
    report.write(
        options.output,
        {"benchmark": "train_step", "machine": about, "settings": settings, "results": records},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
