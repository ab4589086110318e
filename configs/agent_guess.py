"""A guessing game over several turns, learned off-policy from stored trajectories.

The policy finds a hidden digit within four guesses, each answered by the direction. Nothing is
demonstrated. The sampler's weights are refreshed every 20 steps only.

Command:
    grre train configs/agent_guess.py
Hardware:
    2 CPU cores, float32.
"""

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return c.Config(
        name="agent_guess",
        task=c.TaskConfig("guess_number"),
        objective=c.ObjectiveConfig("rec_oneside_nois", {"epsilon_low": 0.6, "epsilon_high": 2.0}),
        regime=c.Regime(sync_interval=20),
        sampling=c.SamplingConfig(
            group_size=8, max_prompt_tokens=4, max_new_tokens=8, max_turns=4, max_turn_tokens=1
        ),
        training=c.TrainingConfig(steps=400, prompts_per_step=16),
        optimizer=c.OptimizerConfig(learning_rate=1e-3),
        evaluation=c.EvaluationConfig(every=40, questions=256, allow_contaminated=True),
        checkpoint=c.CheckpointConfig(every=100),
    )
