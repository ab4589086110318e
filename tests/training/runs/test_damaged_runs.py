"""A data set of a finished run damaged, and the run resumed. (Other files: test_policies.py,
checkpoints/test_folder.py.)
"""

import shutil

import pytest

from grre_jax import rollouts
from grre_jax.training import loop

from ...run_processes import bits, log, quiet

pytestmark = pytest.mark.usefixtures("no_reports")


def test_a_damaged_data_set_is_named_and_sampled_again_once_it_is_not_listed(
    copy, tiny_run, make_config, flip
):
    """By policy 6, for steps 7 and 8; the run is the one that it would have been."""
    shutil.rmtree(copy / "checkpoints" / "8")
    config = make_config(copy)
    entry = rollouts.read(copy / "rollouts").datasets[-1]
    file = copy / "rollouts" / entry.name / entry.data_file
    flip(file, file.stat().st_size // 2)
    with pytest.raises(rollouts.CorruptShard) as error:
        loop.train(config, resume=True, console=quiet())
    assert error.value.file == str(file)
    (copy / "rollouts" / "manifest.jsonl").write_bytes(b"")
    loop.train(config, resume=True, console=quiet())
    assert log(copy) == log(tiny_run) and bits(copy) == bits(tiny_run)
