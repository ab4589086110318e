"""A run that is killed for real, and resumed: the same numbers as the run that was not, and no
shard lost.
"""

import pytest

from grre_jax import rollouts
from grre_jax.config import EvaluationConfig
from grre_jax.training import loop

from ...run_processes import bits, kill_all, quiet, rows, start, wait_for_step, written

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


# A signal that asks the run to stop is sent within the tests' process (test_loop).
def test_killed_and_resumed(tiny_run, make_config, tmp_path):
    """It goes on within this process."""
    fields = {"start_from": str(tiny_run), "evaluation": EvaluationConfig(questions=0)}
    alone = loop.train(make_config(tmp_path / "alone", **fields), console=quiet())
    config, run = make_config(tmp_path / "run", **fields), tmp_path / "run"
    process = start(written(config), run)
    wait_for_step([process], run, 5)
    process.kill()
    process.wait()
    sealed = {entry.name for entry in rollouts.read(run / "rollouts").datasets}
    loop.train(config, resume=True, console=quiet())
    assert sealed <= {entry.name for entry in rollouts.read(run / "rollouts").datasets}

    assert rows(run) == rows(alone) and bits(run) == bits(alone)
    assert rollouts.verify(run / "rollouts").ok
    assert list(rollouts.read(run / "rollouts")) == list(rollouts.read(alone / "rollouts"))
