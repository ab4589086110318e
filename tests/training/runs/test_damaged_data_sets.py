"""A damaged data set of the run's own is sampled again, and the run is the one that it would have
been.
"""

import dataclasses
import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.training import loop

from ...run_processes import bits, log

pytestmark = pytest.mark.usefixtures("no_reports")


def train(config, **options):
    shown = io.StringIO()
    loop.train(config, console=Console(file=shown, width=300), **options)
    return shown.getvalue()


def test_what_is_damaged_is_sampled_again_and_nothing_differs(make_config, tmp_path):
    """Policies 0 and 3 sample what steps 3 to 8 train on, three steps ahead."""
    words = "--regime.sync_offset 3 --checkpoint.keep 9"
    config = make_config(tmp_path / "whole", words)
    train(config)
    run = shutil.copytree(config.run_dir, tmp_path / "run")
    for later in (6, 8):  # as it stood at step 3, with all of its data
        shutil.rmtree(run / "checkpoints" / str(later))
    before = rollouts.read(run / "rollouts").datasets
    assert [entry.policy_version for entry in before] == [0, 3]
    files = [run / "rollouts" / entry.name / entry.data_file for entry in before]
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 16
    files[0].write_bytes(data)
    shutil.rmtree(files[1].parent)  # of the policy that the run resumes from
    said = train(dataclasses.replace(config, run_dir=str(run)), resume=True)
    for path in files:
        assert f"damaged  {path}: sampling its groups again" in said
    assert log(run) == log(Path(config.run_dir)) and bits(run) == bits(Path(config.run_dir))
    again = rollouts.read(run / "rollouts").datasets
    assert again[:2] == before and [entry.policy_version for entry in again[2:]] == [0, 3]
    named = {problem.file for problem in rollouts.verify(run / "rollouts").problems}
    assert {str(path) for path in files} <= named
