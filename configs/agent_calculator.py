"""Chained arithmetic with a calculator, learned off-policy from stored trajectories.

A warm start shows how the calculator is called, and in four of five demonstrations a wrong answer
that is given at once. Rewards then teach to call it. The sampler's weights are refreshed every 20
steps only.

Command, in this repository's folder:
    grre train configs/agent_calculator.py
Hardware:
    2 CPU cores, float32.
Time:
    37 minutes (measured, on cores that had far more other work: 8 minutes of processor time).
Result:
    On 256 held-out questions, seed 0: right in 23.4% after the warm start (greedy 7.4%), 75.0%
    after 20 steps, 90.6% after 80 and 94.5% at the end (greedy 98.0%).
"""

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return c.Config(
        name="agent_calculator",
        task=c.TaskConfig(
            "examples/calculator.py:Calculator", {"operands": 3, "digits": 1, "flaw": 0.8}
        ),
        objective=c.ObjectiveConfig("rec_oneside_nois", {"epsilon_low": 0.6, "epsilon_high": 2.0}),
        regime=c.Regime(sync_interval=20),
        sampling=c.SamplingConfig(
            group_size=8, max_prompt_tokens=6, max_new_tokens=32, max_turns=4, max_turn_tokens=10
        ),
        training=c.TrainingConfig(steps=120, prompts_per_step=16),
        optimizer=c.OptimizerConfig(learning_rate=3e-4),
        warm_start=c.WarmStartConfig(
            steps=600,
            demonstrations=32_768,
            batch_size=128,
            optimizer=c.OptimizerConfig(
                learning_rate=4e-3, warmup_steps=20, decay="linear", decay_steps=600
            ),
        ),
        evaluation=c.EvaluationConfig(every=20, questions=256),
        checkpoint=c.CheckpointConfig(every=60),
    )
