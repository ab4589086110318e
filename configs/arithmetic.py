"""The embedded default: chained arithmetic modulo ten, learned off-policy from stored rollouts.

Shows that clipped group-relative REINFORCE without importance weights learns from stale data (arXiv
2509.24203). The sampler's weights are refreshed every 20 steps only, the clip range is the paper's
fast one, (0.6, 2.0), and no ratio multiplies the gradient.

Command:
    grre train configs/arithmetic.py
Hardware:
    2 CPU cores, float32.
Time:
    81 seconds (measured on quiet cores, an Intel Xeon; about 4 minutes with other work beside it).
Result:
    On 256 held-out questions, seeds 0 and 1: greedy accuracy from 15.2% to 97.7% and from 12.9% to
    89.8%, sampled (temperature 1) from 23.4% to 93.4% and from 24.2% to 77.3%. The learning rate
    decides: seed 0 ends at 93.0% greedy at 5e-4, and at 41.8% at 1e-3.
"""

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return c.Config(
        name="arithmetic",
        task=c.TaskConfig(
            "arithmetic", {"operands": 5, "answers": "full", "corruption": 0.0, "flaw": 0.6}
        ),
        objective=c.ObjectiveConfig("rec_oneside_nois", {"epsilon_low": 0.6, "epsilon_high": 2.0}),
        regime=c.Regime(sync_interval=20),
        sampling=c.SamplingConfig(
            group_size=8, max_prompt_tokens=10, max_new_tokens=24, prompts_per_call=320
        ),
        training=c.TrainingConfig(steps=320, prompts_per_step=16),
        optimizer=c.OptimizerConfig(learning_rate=3e-4),
        warm_start=c.WarmStartConfig(
            steps=600,
            demonstrations=32_768,
            batch_size=128,
            optimizer=c.OptimizerConfig(
                learning_rate=4e-3, warmup_steps=20, decay="linear", decay_steps=600
            ),
        ),
        evaluation=c.EvaluationConfig(every=40, questions=256),
        checkpoint=c.CheckpointConfig(every=80, export=True),
    )
