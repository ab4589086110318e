"""SmolLM2-135M-Instruct learns offline from the stored GSM8K solutions of four other models.

Shows that data that no policy of this project sampled, and that has no log-probs, trains like any
other under an objective without a ratio. Measured is ranking: how often the mean token log-prob of
a correct solution exceeds that of an incorrect one of the same question, on questions that were not
trained on. The 419 questions 900-1318 are held out (those that have both a correct and an incorrect
solution within the limits count), 0-699 are trained on.

The questions are GSM8K's test split: evaluating what this trains on GSM8K test is refused without
--evaluation.allow-contaminated true.

A base model goes on with a question of its own after the answer, whose numbers would be judged: end
its completions there with --sampling.stop "['\\n\\nQuestion:']" and
--evaluation.stop "['\\n\\nQuestion:']".

Commands:
    grre fetch HuggingFaceTB/SmolLM2-135M-Instruct --output models/smollm2-135m
    grre rollouts import gsm8k-solutions example_model_solutions.jsonl rollouts/gsm8k
    grre train configs/smollm2_gsm8k_offline.py
Hardware:
    2 CPU cores, float32, 12 GB of memory.
Time:
    24 minutes (measured, AMD EPYC, while the test suite ran beside it).
Result:
    On the 210 held-out questions with a pair to rank, the share of pairs ranked right rose from
    0.538 to 0.611: +0.073, 95% paired bootstrap interval over questions +0.041 to +0.106. The same
    from a first trial on questions 900-1199 alone: 0.511 to 0.571, +0.060 (+0.019 to +0.100). No
    other objective or learning rate was tried.
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
        data=c.DataConfig(path="rollouts/gsm8k", questions="0:700", drop_over_limit=True),
        sampling=c.SamplingConfig(group_size=4, max_prompt_tokens=256, max_new_tokens=256),
        training=c.TrainingConfig(
            steps=30, prompts_per_step=8, pack_length=640, packs_per_microbatch=2
        ),
        optimizer=c.OptimizerConfig(learning_rate=2e-5, warmup_steps=5),
        evaluation=c.EvaluationConfig(questions=0, ranking_questions="900:1319"),
        checkpoint=c.CheckpointConfig(every=15, export=True),
    )
