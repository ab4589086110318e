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


REPLAY = (
    "--evaluation.questions 0 --regime.sync_interval 2 --regime.reuse 2 --regime.replay_ratio 0.25"
)


# A signal that asks the run to stop is sent within the tests' process (test_loop).
@pytest.mark.distributed
@pytest.mark.parametrize("words", ["", pytest.param(REPLAY, marks=pytest.mark.slow)])
def test_killed_and_resumed(make_config, tiny_run, tmp_path, words):
    """With replay and two uses of a batch too. It goes on within this process."""
    alone = (
        loop.train(make_config(tmp_path / "alone", words), console=quiet()) if words else tiny_run
    )
    run = tmp_path / "run"
    config = make_config(run, words)
    process = start(written(config), run)
    wait_for_step([process], run, 5)
    process.kill()
    process.wait()
    sealed = {entry.name for entry in rollouts.read(run / "rollouts").datasets}
    loop.train(config, resume=True, console=quiet())
    assert rows(run) == rows(alone) and bits(run) == bits(alone)
    assert rollouts.verify(run / "rollouts").ok
    reader = rollouts.read(run / "rollouts")
    assert sealed <= {entry.name for entry in reader.datasets}
    assert list(reader) == list(rollouts.read(alone / "rollouts"))
    if words:
        # One of four groups of a step is replayed from step 3 on.
        sampled = {entry.policy_version: entry.groups for entry in reader.datasets}
        assert sampled == {0: 4, 2: 3, 4: 3, 6: 3}
        ages = [rows(run)["train", step]["staleness"] for step in (1, 2, 3)]
        assert ages == [0, 1, 0.5]
