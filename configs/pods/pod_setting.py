"""The setting that the pod configurations share: GSM8K by GRPO, 96 prompts x 8 completions of up to
1,024 tokens per step, in rows of 1,280 tokens.

Parameters, gradients and optimizer state are stored in float32 over the chips, the products run in
bfloat16. A row holds one completion of full length, so prompts are not shared. A policy samples for
20 steps, in one call as wide as memory allows.
"""

from grre_jax import config as c


def setting(
    name: str,
    model: c.ModelSource,
    mesh: c.MeshConfig,
    *,
    packs_per_microbatch: int = 0,
) -> c.Config:
    """Returns the setting for a model on a mesh.

    Args:
        name: name of the configuration.
        model: the checkpoint and its shape.
        mesh: the devices.
        packs_per_microbatch: rows of a micro-batch; 0 for the whole batch at once.
    """
    return c.Config(
        name=name,
        model=model,
        task=c.TaskConfig("gsm8k"),
        objective=c.ObjectiveConfig("grpo"),
        sampling=c.SamplingConfig(
            group_size=8,
            max_prompt_tokens=256,
            max_new_tokens=1024,
        ),
        training=c.TrainingConfig(
            steps=200,
            prompts_per_step=96,
            pack_length=1280,
            packs_per_microbatch=packs_per_microbatch,
            share_prompts=False,
        ),
        regime=c.Regime(sync_interval=20),
        optimizer=c.OptimizerConfig(learning_rate=1e-6, warmup_steps=10),
        mesh=mesh,
    )
