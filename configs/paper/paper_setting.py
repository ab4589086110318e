"""The setting that the paper's four configurations share (arXiv 2509.24203): K = 8, Adam at 1e-6,
gradient clip 1, temperature 1, answers of up to 1,024 tokens, token-mean, and clipped
group-relative REINFORCE without importance weights.

Each is on-policy as it is. The paper's other regimes, for any of them:

    every 20 steps a new sampler         --regime.sync-interval 20
    ten batches ahead                    --regime.sync-offset 10
    all data from the initial policy     --regime.offline true

The paper's fast clip range is `--objective.options.epsilon_low 0.6 --objective.options.epsilon_high
2.0`. `--objective.name grpo`, `reinforce`, `red_drop` and so on choose its other algorithms (`grre
algorithms` lists them). Give each run a `--name`.

Our choice: 96 prompts per step in all four (the paper's number for GSM8K), the steps, the limits on
prompts (longer ones are left out), the mesh.
"""

from grre_jax import config as c


def setting(
    name: str,
    model: c.ModelSource,
    task: c.TaskConfig,
    *,
    max_prompt_tokens: int,
    prompts_per_call: int,
    packs_per_microbatch: int = 0,
    questions: int,
    mesh: c.MeshConfig,
) -> c.Config:
    """Returns the paper's setting for a model and a task.

    Args:
        name: name of the configuration.
        model: the checkpoint and its shape.
        task: questions and verifier.
        max_prompt_tokens: limit on prompts, in tokens.
        prompts_per_call: prompts that one call of the sampler completes, 8 times each.
        packs_per_microbatch: rows of a micro-batch; 0 for the whole batch at once.
        questions: held-out questions of an evaluation, answered greedily.
        mesh: the devices.
    """
    return c.Config(
        name=name,
        model=model,
        task=task,
        objective=c.ObjectiveConfig("rec_oneside_nois", {"epsilon_low": 0.2, "epsilon_high": 0.2}),
        sampling=c.SamplingConfig(
            group_size=8,
            temperature=1.0,
            max_prompt_tokens=max_prompt_tokens,
            max_new_tokens=1024,
            prompts_per_call=prompts_per_call,
        ),
        training=c.TrainingConfig(
            steps=160,
            prompts_per_step=96,
            pack_length=max_prompt_tokens + 1024,
            packs_per_microbatch=packs_per_microbatch,
            share_prompts=False,
        ),
        optimizer=c.OptimizerConfig(learning_rate=1e-6, clip_norm=1.0),
        evaluation=c.EvaluationConfig(every=20, questions=questions, temperature=0.0),
        checkpoint=c.CheckpointConfig(every=20, export=True),
        mesh=mesh,
    )
