"""A damaged data set of the run's own is named; without its line in the manifest it is sampled
again, and the run is the one that it would have been.
"""

import shutil

import pytest

from grre_jax import rollouts
from grre_jax.rollouts import manifest
from grre_jax.training import loop

from ...run_processes import bits, log, quiet

pytestmark = pytest.mark.usefixtures("no_reports")


def test_what_is_damaged_is_named_and_sampled_again_once_it_is_not_listed(
    make_config, flip, tmp_path
):
    """Policies 0 and 3 sample what steps 3 to 8 train on, three steps ahead."""
    words = "--regime.sync_offset 3 --checkpoint.keep 9 --evaluation.questions 0"
    whole = loop.train(make_config(tmp_path / "whole", words), console=quiet())
    run = shutil.copytree(whole, tmp_path / "run")
    for later in (6, 8):  # as it stood at step 3, with all of its data
        shutil.rmtree(run / "checkpoints" / str(later))
    config = make_config(run, words)
    before = rollouts.read(run / "rollouts").datasets
    assert [entry.policy_version for entry in before] == [0] * 6 + [3] * 2
    files = [run / "rollouts" / entry.name / entry.data_file for entry in (before[4], before[6])]
    flip(files[0], files[0].stat().st_size // 2)
    with pytest.raises(rollouts.CorruptShard) as error:
        loop.train(config, resume=True, console=quiet())
    assert error.value.file == str(files[0])
    (run / "rollouts" / manifest.FILENAME).write_bytes(b"")
    loop.train(config, resume=True, console=quiet())
    assert log(run) == log(whole) and bits(run) == bits(whole)
    again = rollouts.read(run / "rollouts").datasets
    assert {entry.policy_version for entry in again} == {0, 3}
