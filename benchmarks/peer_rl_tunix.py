"""The arm of `time_to_accuracy.py` for Tunix: GRPOLearner on an RLCluster with its own sampler, as
its documentation has it, on its Llama 3 loaded from safetensors.

Set are what the other arms have too: batch, group, limit, temperature 1, no KL, and Optax's AdamW
behind a clip of the gradient norm. Of Tunix 0.1.7 two things are mended. Its Llama 3 rotates with
base 1,000,000 whatever the configuration says: with a start of base 10,000 its first samples were
0.0% right, not 30%, and 80 steps ended 11% right (greedy), not 94%. Its sampler draws the same
noise in every step unless it is given a seed. Left as it is: the sampler leaves the end of a
completion out of the tokens that are trained on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx
from peer_rl import Run, run_of_arguments
from safetensors.numpy import save_file
from transformers import AutoTokenizer
from tunix.models.llama3 import model as llama, params as llama_params
from tunix.rl import rl_cluster as clusters
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig


def config_of(folder: Path) -> llama.ModelConfig:
    """The model of a Transformers folder, whose rotary base replaces Tunix's constant."""
    stored = json.loads((folder / "config.json").read_text())
    rope = stored.get("rope_parameters") or stored
    llama.apply_rope = partial(llama.apply_rope, rope_theta=rope["rope_theta"])
    return llama.ModelConfig(
        num_layers=stored["num_hidden_layers"],
        vocab_size=stored["vocab_size"],
        embed_dim=stored["hidden_size"],
        hidden_dim=stored["intermediate_size"],
        num_heads=stored["num_attention_heads"],
        num_kv_heads=stored["num_key_value_heads"],
        head_dim=stored["head_dim"],
        rope_theta=rope["rope_theta"],
        norm_eps=stored["rms_norm_eps"],
        weight_tying=stored["tie_word_embeddings"],
    )


def save(model: llama.Llama3, start: Path, folder: Path) -> None:
    """Writes the weights as the Transformers folder that they came from."""
    params = {
        ".".join(map(str, path)): np.asarray(x)
        for path, x in nnx.to_flat_state(nnx.state(model, nnx.Param))
        for x in [x[...]]
    }
    width = model.config.embed_dim
    arrays = {
        "model.embed_tokens.weight": params.pop("embedder.input_embedding"),
        "model.norm.weight": params.pop("final_norm.w"),
    }
    for name, x in params.items():
        owner, _, last = name.rpartition(".")
        place = f"model.{owner}.weight".replace(".attn.", ".self_attn.")
        if owner.endswith("o_proj"):
            x = x.reshape(-1, width).T
        elif owner.endswith("_proj"):
            x = (x.reshape(width, -1) if last == "w" else x).T
        arrays[place] = np.ascontiguousarray(x)
    folder.mkdir(parents=True)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(start / "config.json", folder)


def batches(
    run: Run, learner: list[GRPOLearner], rollout: RolloutConfig
) -> Iterator[dict[str, np.ndarray]]:
    """The questions of every step, which has a seed of its own; the learner takes the next when a
    step is done.
    """
    size = run.job["prompts_per_step"]
    for step in range(run.job["steps"]):
        if step:
            ended(run, learner[0])
        rollout.seed = run.job["seed"] * run.job["steps"] + step
        part = slice(step * size, (step + 1) * size)
        yield {"prompts": np.array(run.prompts[part]), "answer": np.array(run.answers[part])}


def ended(run: Run, learner: GRPOLearner) -> None:
    """Ends a step."""
    model = learner.rl_cluster.actor_trainer.model
    jax.block_until_ready(nnx.state(model))
    run.step_ended(partial(save, model, Path(run.job["start"])))


def main() -> None:
    """Trains."""
    run = run_of_arguments()
    job, start = run.job, Path(run.job["start"])
    rollout = RolloutConfig(
        max_tokens_to_generate=job["new_tokens"],
        max_prompt_length=job["prompt_tokens"],
        kv_cache_size=job["prompt_tokens"] + job["new_tokens"],
        temperature=1.0,
        top_p=1.0,
    )
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        model = llama_params.create_model_from_safe_tensors(
            str(start), config_of(start), mesh, jax.numpy.float32
        )
    cluster = clusters.RLCluster(
        actor=model,
        tokenizer=AutoTokenizer.from_pretrained(start),
        cluster_config=clusters.ClusterConfig(
            role_to_mesh={role: mesh for role in (clusters.Role.ACTOR, clusters.Role.ROLLOUT)},
            rollout_engine="vanilla",
            training_config=clusters.RLTrainingConfig(
                actor_optimizer=optax.chain(
                    optax.clip_by_global_norm(1.0),
                    optax.adamw(job["learning_rate"], weight_decay=0.0),
                ),
                eval_every_n_steps=job["steps"] + 1,
                max_steps=job["steps"],
                mini_batch_size=job["prompts_per_step"],
            ),
            rollout_config=rollout,
        ),
    )
    cluster.generate = run.timed("sampling", cluster.generate)
    learner = GRPOLearner(
        rl_cluster=cluster,
        reward_fns=run.reward,
        algo_config=GRPOConfig(num_generations=job["samples"], beta=0.0, epsilon=0.2),
    )
    run.start()
    with mesh:  # under jax.set_mesh Tunix 0.1.7 cannot lay out its optimizer
        learner.train(batches(run, [learner], rollout))
    ended(run, learner)
    run.write(
        versions=f"google-tunix {version('google-tunix')}, jax {jax.__version__}",
        settings="Llama3, float32, vanilla rollout",
    )


if __name__ == "__main__":
    main()
