"""SmolLM2-135M-Instruct on one-digit sums, the setting in which algorithms are compared.

Shows which updates of the family learn on-policy, with a sampler refreshed every 20 steps, and
offline. Every run has the same learning rate, questions and number of samples; only algorithm,
regime and seed differ. 32 steps of 4 groups, so that the sampler refreshed every 20 steps is
refreshed once.

Commands:
    grre fetch HuggingFaceTB/SmolLM2-135M-Instruct --output models/smollm2-135m
    python -m research.compare configs/smollm2_compare_sums.py --greedy-bound 0.7
    bfloat16, as the published runs had it: --model.compute-dtype bfloat16, fast on a CPU with
    Python 3.12 and jax 0.12
Hardware:
    2 CPU cores, 10 GB of memory.
Time:
    An hour: 3.4 minutes a run, 18 runs (measured, AMD EPYC, Python 3.12, jax 0.12, bfloat16; other
    work beside some of them).
Result:
    research/results/compare/sums/compare.md.
"""

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return c.Config(
        name="smollm2_compare_sums",
        model=c.ModelSource(path="models/smollm2-135m"),
        task=c.TaskConfig("chat_arithmetic"),
        objective=c.ObjectiveConfig("reinforce"),
        sampling=c.SamplingConfig(
            group_size=8, max_prompt_tokens=48, max_new_tokens=12, prompts_per_call=32
        ),
        training=c.TrainingConfig(steps=32, prompts_per_step=4, packs_per_microbatch=8),
        optimizer=c.OptimizerConfig(learning_rate=2e-5, warmup_steps=5),
        evaluation=c.EvaluationConfig(every=8, questions=20, num_samples=8),
        checkpoint=c.CheckpointConfig(every=32),
    )
