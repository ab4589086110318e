"""The worker of `peers.py` for this library: the workload of `train_step.py`."""

from __future__ import annotations

import jax
import machine
from flax import nnx
from peer_serve import serve
from train_step import Data, Workload

import grre_jax
from grre_jax.models import ModelConfig, Transformer


class Work:
    """The compiled step and its batch; see `peer_serve.serve`."""

    def __init__(self, job):
        model = Transformer(ModelConfig(**job["model"]), rngs=nnx.Rngs(params=0))
        self.work = Workload("ours", model, Data(**job["work"]), "grpo")
        micro, rows, length = self.work.rows
        self.about = {
            "parameters": model.config.num_parameters,
            "rows": [micro * rows, length],
            "live_tokens": self.work.tokens,
            "first_step_seconds": self.work.compile_seconds,
            "versions": f"grre_jax {grre_jax.__version__}, jax {jax.__version__}",
            "settings": f"float32, {micro} micro-batches of {rows} rows",
        }

    def steps(self, count: int) -> dict[str, float]:
        """`count` updates."""
        return {"seconds": count * machine.timed(self.work.call, count)}


if __name__ == "__main__":
    serve(Work)
