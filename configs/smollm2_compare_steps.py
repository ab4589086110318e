"""SmolLM2-135M-Instruct on sums with written steps, the setting in which algorithms are compared on
answers of 32 to 64 tokens.

Shows which updates of the family learn on-policy, with a sampler refreshed every 20 steps, and
offline, where the start is mostly wrong greedily too. Every run has the same learning rate,
questions and number of samples; only algorithm, regime and seed differ. 30 steps, so that the
sampler refreshed every 20 steps is refreshed once; evaluated at the start and at the end.

Commands:
    grre fetch HuggingFaceTB/SmolLM2-135M-Instruct --output models/smollm2-135m
    export JAX_COMPILATION_CACHE_DIR=runs/compiled  # programs outlive a stop
    python -m research.compare configs/smollm2_compare_steps.py --seeds 3
Hardware:
    2 CPU cores, float32.
Time:
    Not measured. Predicted: 10 minutes a run on two cores, 54 runs (docs/studies.md).
Result:
    None yet, and the learning rate was not tuned. A probe of the start with 24 questions: greedy
    accuracy 0.17, sampled 0.07, pass@4 0.25 (4 samples a question), 51 tokens a sampled answer, 57%
    of which are cut off at 64.
"""

from grre_jax import config as c

TEMPLATE = """\
Calculate 5 + 4 + 8.
First, 5 + 4 = 9. Then, 9 + 8 = 17. The answer is 17.

Calculate 2 + 6 + 3.
First, 2 + 6 = 8. Then, 8 + 3 = 11. The answer is 11.

Calculate {expression}."""
# What the model goes on with after an answer.
STOP = ("\n\nCalculate", "\n\nIn this example")


def config() -> c.Config:
    """Returns the configuration."""
    task = {"operands": 3, "digits": 2, "below": 12, "template": TEMPLATE}
    return c.Config(
        name="smollm2_compare_steps",
        model=c.ModelSource(path="models/smollm2-135m", system_prompt="", lora_rank=16),
        task=c.TaskConfig("examples/chat_arithmetic.py:ChatArithmetic", task),
        objective=c.ObjectiveConfig("reinforce"),
        sampling=c.SamplingConfig(
            group_size=8, max_prompt_tokens=120, max_new_tokens=64, prompts_per_call=32, stop=STOP
        ),
        training=c.TrainingConfig(steps=30, prompts_per_step=3),
        optimizer=c.OptimizerConfig(learning_rate=2e-4, warmup_steps=5),
        evaluation=c.EvaluationConfig(every=30, questions=300, stop=STOP),
        checkpoint=c.CheckpointConfig(every=10),
    )
