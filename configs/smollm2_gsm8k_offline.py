"""SmolLM2-135M-Instruct learns offline from the stored GSM8K solutions of four other models.

Shows that data that no policy of this project sampled, and that has no log-probs, trains like any
other under an objective without a ratio.

The questions are GSM8K's test split: evaluating what this trains on GSM8K test is refused without
--evaluation.allow-contaminated true.

A base model goes on with a question of its own after the answer, whose numbers would be judged: end
its completions there with --sampling.stop "['\\n\\nQuestion:']" and
--evaluation.stop "['\\n\\nQuestion:']".

Commands:
    grre fetch HuggingFaceTB/SmolLM2-135M-Instruct --output models/smollm2-135m
    python scripts/gsm8k_solutions.py example_model_solutions.jsonl solutions.jsonl
    grre rollouts import jsonl solutions.jsonl rollouts/gsm8k --task gsm8k --contains gsm8k/test
    grre train configs/smollm2_gsm8k_offline.py
Hardware:
    2 CPU cores, float32, 12 GB of memory.
Time:
    24 minutes (measured, AMD EPYC, while the test suite ran beside it).
"""

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return c.Config(
        name="smollm2_gsm8k_offline",
        model=c.ModelSource(path="models/smollm2-135m"),
        task=c.TaskConfig("gsm8k"),
        objective=c.ObjectiveConfig("reinforce"),
        regime=c.Regime(offline=True),
        data=c.DataConfig(path="rollouts/gsm8k", drop_over_limit=True),
        sampling=c.SamplingConfig(group_size=4, max_prompt_tokens=256, max_new_tokens=256),
        training=c.TrainingConfig(
            steps=30, prompts_per_step=8, pack_length=640, packs_per_microbatch=2
        ),
        optimizer=c.OptimizerConfig(learning_rate=2e-5, warmup_steps=5),
        evaluation=c.EvaluationConfig(questions=0),
        checkpoint=c.CheckpointConfig(every=15, export=True),
    )
