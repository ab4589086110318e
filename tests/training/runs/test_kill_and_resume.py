"""A run that is killed for real, and resumed: the same numbers as the run that was not, and no
shard lost.
"""

import pytest

from grre_jax import rollouts
from grre_jax.training import loop

from ...run_processes import bits, kill_all, quiet, rows, start, wait_for_step, written

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


# A signal that asks the run to stop is sent within the tests' process (test_loop).
@pytest.mark.distributed
def test_killed_and_resumed(make_config, tiny_run, tmp_path):
    """It goes on within this process."""
    run = tmp_path / "run"
    config = make_config(run)
    process = start(written(config), run)
    wait_for_step([process], run, 5)
    process.kill()
    process.wait()
    sealed = {entry.name for entry in rollouts.read(run / "rollouts").datasets}
    loop.train(config, resume=True, console=quiet())
    assert rows(run) == rows(tiny_run) and bits(run) == bits(tiny_run)
    assert rollouts.verify(run / "rollouts").ok
    reader = rollouts.read(run / "rollouts")
    assert sealed <= {entry.name for entry in reader.datasets}
    assert list(reader) == list(rollouts.read(tiny_run / "rollouts"))
