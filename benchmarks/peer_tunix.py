"""The worker of `peers.py` for Tunix: its Llama 3 model, its GRPO loss and its RL trainer's own
loop, jitted step and metrics included.

As its GRPO learner leaves them: prompt and completion padded to the run's limits, the whole batch
one step, no KL (beta 0). The loop is handed the same `TrainExample` again and again. The optimiser
is the user's in Tunix; here it is Optax's AdamW behind a clip of the gradient norm, as in the
others. Matrices are redrawn, because Tunix's model expects a checkpoint and starts its MLP at zero.
"""

from __future__ import annotations

import time
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from peer_serve import END, PAD, padded_rows, serve
from tunix.models.llama3 import model as llama
from tunix.rl import function_registry, trainer
from tunix.rl.grpo import grpo_learner
from tunix.sft import peft_trainer


def make_model(shape: dict[str, int]) -> llama.Llama3:
    """A tied float32 model with matrices of standard deviation 0.02."""
    config = llama.ModelConfig(
        num_layers=shape["num_layers"],
        vocab_size=shape["vocab_size"],
        embed_dim=shape["hidden_size"],
        hidden_dim=shape["intermediate_size"],
        num_heads=shape["num_heads"],
        num_kv_heads=shape["num_kv_heads"],
        head_dim=shape["head_dim"],
        rope_theta=10_000,
        norm_eps=1e-6,
        weight_tying=True,
    )
    model = llama.Llama3(config, rngs=nnx.Rngs(0))
    generator = np.random.default_rng(0)

    def drawn(x):
        return jnp.asarray(generator.normal(0, 0.02, x.shape), jnp.float32) if x.ndim > 1 else x

    nnx.update(model, jax.tree.map(drawn, nnx.state(model, nnx.Param)))
    return model


class Work:
    """The trainer and its batch; see `peer_serve.serve`."""

    def __init__(self, job):
        rows = padded_rows(job["data"], job["work"]["new_tokens"])
        self.model = make_model(job["model"])
        algorithm = grpo_learner.GRPOConfig(
            num_generations=job["work"]["samples"], beta=0.0, epsilon=0.2
        )
        algorithm.temperature = 1.0
        loss = function_registry.get_policy_loss_fn(algorithm.policy_loss_fn)
        self.trainer = trainer.Trainer(
            self.model,
            optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6, weight_decay=0.0)),
            peft_trainer.TrainingConfig(eval_every_n_steps=1_000_000_000),
            custom_checkpoint_metadata_fn=dict,
        )
        self.trainer.with_loss_fn(
            lambda model, train_example: loss(
                model, train_example, algo_config=algorithm, pad_id=PAD, eos_id=END
            ),
            has_aux=True,
        )
        self.trainer.with_gen_model_input_fn(lambda example: {"train_example": example})
        self.trainer.with_rl_metrics_to_log(
            {"kl": np.mean, "pg_clipfrac": np.mean}
        )  # the learner's choice
        self.trainer.is_managed_externally = (
            True  # by the learner; the loop then leaves everything open for the next call
        )
        self.example = grpo_learner.TrainExample(
            prompt_ids=jnp.asarray(rows.prompts),
            prompt_mask=jnp.ones(rows.prompts.shape, bool),
            completion_ids=jnp.asarray(rows.completions),
            completion_mask=jnp.asarray(rows.mask, bool),
            advantages=jnp.asarray(rows.advantages),
            ref_per_token_logps=None,
            old_per_token_logps=jnp.asarray(rows.old_logprobs),
        )
        seconds = self.steps(1)["seconds"]
        params = nnx.state(self.model, nnx.Param)
        self.about = {
            "parameters": sum(x.size for x in jax.tree.leaves(params)),
            "rows": [len(rows.prompts), rows.prompts.shape[1] + rows.completions.shape[1]],
            "first_step_seconds": seconds,
            "versions": f"google-tunix {version('google-tunix')}, jax {jax.__version__}",
            "settings": "Llama3, GRPO loss, RL trainer's loop",
        }

    def steps(self, count: int) -> dict[str, float]:
        """`count` updates."""
        start = time.perf_counter()
        self.trainer.train([self.example] * count)
        jax.block_until_ready(nnx.state(self.model))
        return {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    serve(Work)
