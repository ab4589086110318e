import numpy as np
import pytest

from grre_jax.reporting import MetricsLog, wilson_interval


def write_run(folder, *, steps=80, every=10, not_finite=()):
    """A run folder whose curves look like a run's; the same each time but for the clock."""
    rng = np.random.default_rng(0)
    with MetricsLog(folder) as log:
        for step in range(steps + 1):
            accuracy = 0.4 + 0.5 * (1 - np.exp(-4 * step / steps))
            row = {
                "reward": np.float32(np.clip(accuracy + 0.05 * rng.normal(), 0, 1)),
                "clip_fraction": 0.02 * abs(rng.normal()),
                "entropy": float("nan") if step in not_finite else 1.0 - 0.8 * step / steps,
                "response_length": 6 + rng.normal(),
                "tokens": 100,
            }
            if step:
                log.write("train", step, row)
            if step % every == 0:
                right = rng.binomial(256, accuracy)
                low, high = wilson_interval(right, 256)
                evaluation = {"accuracy": right / 256, "kl_to_start": 0.3 * step / steps}
                log.write("eval", step, evaluation | {"accuracy_low": low, "accuracy_high": high})
    return folder


@pytest.fixture
def make_run(tmp_path):
    return lambda name, **options: write_run(tmp_path / name, **options)
