"""SmolLM2-135M-Instruct learns to call a calculator, from its own stale trajectories.

The model does not call functions by itself, and its chat template leaves their definitions out, so
a system message declares the calculator. A short warm start shows how it is called, and in four of
five demonstrations a wrong answer that is given at once. Rewards then teach to call it. The
sampler's weights are refreshed every 4 steps only.

Commands, in this repository's folder:
    grre fetch HuggingFaceTB/SmolLM2-135M-Instruct --output models/smollm2-135m
    grre train configs/smollm2_calculator.py
Hardware:
    2 CPU cores, float32, 10 GB of memory.
Time:
    55 minutes (measured; for the first 38 other work had both cores).
Result:
    On 32 held-out questions, 2 samples each, seed 0: right in 15.6% after the warm start (95%
    interval 8.7 to 26.4; greedy 15.6%), 98.4% after 10 steps and at the end (91.7 to 99.7; greedy
    100%).
"""

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return c.Config(
        name="smollm2_calculator",
        model=c.ModelSource(path="models/smollm2-135m", tools="system"),
        task=c.TaskConfig(
            "examples/calculator.py:Calculator",
            {
                "operands": 2,
                "digits": 2,
                "flaw": 0.8,
                "tools": True,
                "template": "What is {expression}? Answer with just the number.",
            },
        ),
        objective=c.ObjectiveConfig("rec_oneside_nois", {"epsilon_low": 0.6, "epsilon_high": 2.0}),
        regime=c.Regime(sync_interval=4),
        sampling=c.SamplingConfig(
            group_size=8,
            max_prompt_tokens=176,
            max_new_tokens=80,
            max_turns=3,
            max_turn_tokens=40,
            prompts_per_call=32,
        ),
        training=c.TrainingConfig(steps=20, prompts_per_step=8, packs_per_microbatch=4),
        optimizer=c.OptimizerConfig(learning_rate=1e-5, warmup_steps=5),
        warm_start=c.WarmStartConfig(
            steps=16,
            demonstrations=128,
            batch_size=8,
            optimizer=c.OptimizerConfig(learning_rate=5e-5, warmup_steps=3),
        ),
        evaluation=c.EvaluationConfig(every=10, questions=32, num_samples=2),
        checkpoint=c.CheckpointConfig(every=10, export=True),
    )
