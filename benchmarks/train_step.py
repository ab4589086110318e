"""Speed of the real train step: tokens/s beside the machine's matmul peak, compile time apart.

    python benchmarks/train_step.py                              # the embedded default and 4.0M
    python benchmarks/train_step.py --model models/smollm2-135m  # a pretrained model too
    python benchmarks/train_step.py --sizes 1.5B --bf16          # Qwen2.5-1.5B's shape, on a GPU
    python benchmarks/train_step.py --output benchmarks/results/train_step.json

The step is `training.step.make_train_step`'s, on what `training.data.pack` makes of synthetic
groups, on one device. Counted are

- tokens: all that are not padding, a prompt once for all its completions (the logs of a run count
  completion tokens only);
- useful tokens: the tokens of the completions, each with its own prompt: the same for every layout;
- FLOPs: 3 x `sizes.flops_per_token` x tokens, with the context that the tokens
  really have, their mean position + 1. What the step computes beyond that (attention to what is
  masked, logits a second time in the backward pass) is its own loss;
- the fraction of peak: those FLOPs a second over what a large square product reached right before,
  in the same round;
- the floor, a prediction of the least time: FLOPs at that peak, then AdamW's traffic (parameters,
  gradients and both moments read, all but the gradients written: seven arrays) at the bandwidth of
  a copy as large as the parameters.
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

from grre_jax import objectives, parallel
from grre_jax.allocation import keep_freed_memory
from grre_jax.models import Transformer
from grre_jax.parallel import mesh as meshes
from grre_jax.rollouts import Group
from grre_jax.training import optimizer as training_optimizer, step as training_state
from grre_jax.training.data.pack import BatchShape, pack
from grre_jax.training.step import make_train_step

OPTIMIZER_ARRAYS = 7  # of the parameters' size, read or written by an AdamW update
OBJECTIVE = "rec_oneside_nois"


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
        model: the shape, if it is not named as the data is.
    """

    groups: int
    samples: int
    prompt_tokens: int
    new_tokens: int
    packs_per_microbatch: int = 0
    pack_length: int = 0
    mean_tokens: int = 0
    model: str = ""

    def shape(self) -> BatchShape:
        """Of the step's batch."""
        return BatchShape.of_run(
            self.groups,
            self.samples,
            self.prompt_tokens,
            self.new_tokens,
            self.pack_length,
            self.packs_per_microbatch,
        )

    def lengths(self) -> np.ndarray:
        """[groups, samples] tokens of the completions."""
        size = (self.groups, self.samples)
        if not self.mean_tokens:
            return np.full(size, self.new_tokens)
        drawn = np.random.default_rng(0).geometric(1 / self.mean_tokens, size)
        return np.minimum(drawn, self.new_tokens)

    def tokens(self) -> int:
        """Of all completions, each with its own prompt."""
        return int(self.lengths().sum()) + self.groups * self.samples * self.prompt_tokens

    def batch(self, vocab_size: int) -> list[Group]:
        """Groups of random tokens from 2 on with mixed rewards, as if the uniform policy had
        sampled them.
        """
        generator = np.random.default_rng(1)
        return [
            Group(
                group_id=f"synthetic:{i}",
                prompt="",
                texts=[""] * self.samples,
                rewards=np.arange(self.samples) % 2,
                prompt_tokens=generator.integers(2, vocab_size, size=self.prompt_tokens),
                lengths=lengths,
                tokens=generator.integers(2, vocab_size, size=lengths.sum()),
                behavior_logprobs=np.full(lengths.sum(), -np.log(vocab_size)),
            )
            for i, lengths in enumerate(self.lengths())
        ]


DATA = {
    "embedded": Data(16, 8, 8, 6),  # arithmetic, short answers: 16 rows of 56 tokens
    "4M": Data(32, 8, 16, 14),  # 32 rows of 128 tokens
    "16M-A4M": Data(32, 8, 16, 14),  # the same data
    "ragged": Data(2, 8, 64, 512, 1, pack_length=576, mean_tokens=64, model="4M"),
    "1.5B": Data(16, 8, 256, 224, 8),  # 16 rows of 2,048 tokens, each a whole group
    "tiny": Data(2, 2, 3, 2),
    "tiny-ragged": Data(2, 2, 3, 6, 1, pack_length=9, mean_tokens=3, model="tiny"),
}
# A micro-batch of configs/smollm2_arithmetic.py: 8 rows of 144 tokens.
MODEL_DATA = Data(8, 8, 48, 12)


class Workload:
    """A compiled train step on its data.

    Args:
        name: for the table.
        model: the policy; its parameters are copied.
        data: what it trains on.
        objective: an algorithm's name.

    Attributes:
        call: makes one update.
        rows: (micro-batches, rows, tokens a row).
        tokens, completion_tokens, context, flops, useful: of one update, as counted above.
        efficiency: tokens over those of the rows that are computed.
        bytes: of all parameters.
        compile_seconds: tracing and compiling.
    """

    def __init__(self, name: str, model: Transformer, data: Data, objective: str = OBJECTIVE):
        self.name = name
        self.config = model.config
        shape = data.shape()
        packed = pack(data.batch(self.config.vocab_size), shape)
        live = packed.segment_ids > 0
        self.rows = [shape.micro_batches, shape.rows, shape.pack_length]
        self.tokens = int(live.sum())
        self.completion_tokens = int(packed.mask.sum())
        self.useful = data.tokens()
        self.context = float((packed.positions[live] + 1).mean())
        self.flops = 3 * sizes.flops_per_token(self.config, self.context) * self.tokens
        computed = live.any(axis=(1, 2)).sum()  # micro-batches; the step skips the others
        self.efficiency = self.tokens / float(computed * shape.rows * shape.pack_length)

        mesh = parallel.make_mesh(parallel.MeshConfig(), devices=jax.devices()[:1])
        settings = training_optimizer.OptimizerConfig(learning_rate=1e-6)
        graph, params, _ = training_state.split(model)
        self._state = training_state.fresh(meshes.laid_out(params, mesh), settings, mesh)
        self.bytes = sum(x.nbytes for x in jax.tree.leaves(self._state.params))
        self._arguments = (
            jax.device_put(packed, meshes.replicated(mesh)),
            objectives.algorithm(objective),
            np.float32(1.0),
            jax.random.key(0),
        )
        step = make_train_step(graph, settings)
        start = time.perf_counter()
        self._step = step.lower(self._state, *self._arguments).compile()
        self.compile_seconds = time.perf_counter() - start
        machine.first_call(self.call)

    def call(self) -> jax.Array:
        """Makes one more update; returns its loss."""
        self._state, metrics = self._step(self._state, *self._arguments)
        return metrics["loss"]

    def times(self, count: int) -> dict[str, float]:
        """Seconds of a step."""
        return {"step": machine.timed(self.call, count)}


def record(work: Workload, times: dict[str, np.ndarray]) -> report.Record:
    """What is written of a workload's rounds."""
    steps = times["step"]
    floor = work.flops / times["peak"] + OPTIMIZER_ARRAYS * work.bytes / times["copy"]
    return {
        "name": work.name,
        "parameters": work.config.num_parameters,
        "rows": work.rows,
        "tokens": work.tokens,
        "completion_tokens": work.completion_tokens,
        "sequence_tokens": work.useful,
        "context": work.context,
        "flops": work.flops,
        "compile_seconds": work.compile_seconds,
        "packing_efficiency": work.efficiency,
        "step_seconds": report.spread(steps),
        "tokens_per_second": report.spread(work.tokens / steps),
        "sequence_tokens_per_second": report.spread(work.useful / steps),
        "matmul_flops_per_second": report.spread(times["peak"]),
        "copy_bytes_per_second": report.spread(times["copy"]),
        "fraction_of_peak": report.spread(work.flops / steps / times["peak"]),
        "floor_seconds": report.spread(floor),
        "fraction_of_floor": report.spread(floor / steps),
    }


LINES = {
    "parameters": lambda r: f"{r['parameters']:,}",
    "micro-batches x rows x tokens": lambda r: " x ".join(map(str, r["rows"])),
    "tokens a step (in completions)": lambda r: f"{r['tokens']:,} ({r['completion_tokens']:,})",
    "GFLOPs a step": lambda r: f"{r['flops'] / 1e9:.2f}",
    "compile s": lambda r: f"{r['compile_seconds']:.1f}",
    "step ms": report.written("step_seconds", ".2f", 1e3),
    "*tokens/s": report.written("tokens_per_second", ",.0f"),
    "useful tokens/s": report.written("sequence_tokens_per_second", ",.0f"),
    "packing efficiency": lambda r: f"{r['packing_efficiency']:.1%}",
    "matmul peak, GFLOP/s": report.written("matmul_flops_per_second", ",.1f", 1e-9),
    "*fraction of peak": report.written("fraction_of_peak", ".1%"),
    "floor / step": report.written("fraction_of_floor", ".1%"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table and writes the JSON; returns the exit status."""
    parser = report.own_parser(__doc__)
    default = ["embedded", "4M"]
    parser.add_argument("--sizes", nargs="*", choices=DATA, default=default, help="models")
    options = parser.parse_args(arguments)
    keep_freed_memory()  # as `grre train` does

    def workloads() -> list[Workload]:
        made = [
            (name, sizes.build(DATA[name].model or name, options.bf16), DATA[name])
            for name in options.sizes
        ]
        if options.model:
            loaded = sizes.build(options.model, options.bf16)
            made.append((options.model.resolve().name, loaded, MODEL_DATA))
        return [Workload(*one) for one in made]

    return report.run("train_step", options, workloads, record, LINES)


if __name__ == "__main__":
    sys.exit(main())
