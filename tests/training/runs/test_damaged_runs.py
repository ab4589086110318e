"""Each file below a finished run's folder deleted, emptied or cut in half, and the run resumed:
refused by name, put right or harmless, never a traceback.
"""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from grre_jax import rollouts
from grre_jax.cli import entry
from grre_jax.training.policies import load_config

from ...run_processes import log, written

# One of each kind, by what its name begins and ends with. Others: test_damaged_data_sets.py,
# test_policies.py and checkpoints/test_folder.py.
KINDS = (
    ("metrics.jsonl", "", "deleted"),
    ("rollouts/manifest.jsonl", "", "cut"),
    ("checkpoints/8/", "training/manifest.ocdbt", "cut"),
)


@pytest.fixture
def resumed(tiny_run, tmp_path, no_reports, capfd):
    """`resumed(name, kind)`: (status, what was said, the folder) of a copy of the run that is
    resumed for a step more with that file damaged.
    """
    run = tmp_path / "run"
    config = dataclasses.replace(load_config(tiny_run), run_dir=str(run))
    file = written(config)

    def resume(name="config.json", kind=""):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(tiny_run, run)
        (run / "config.json").write_text(config.to_json())
        if kind == "deleted":
            (run / name).unlink()
        if kind == "cut":
            os.truncate(run / name, (run / name).stat().st_size // 2)
        capfd.readouterr()
        status = entry.main(["train", str(file), "--resume", "--training.steps", "9"])
        return status, capfd.readouterr().err, run

    return resume


def test_a_file_of_each_kind(tiny_run, resumed):
    status, said, run = resumed()
    assert status == 0, said
    whole = log(run)
    datasets = rollouts.verify(run / "rollouts").datasets
    every = [str(path.relative_to(tiny_run)) for path in tiny_run.rglob("*") if path.is_file()]
    for first, last, kind in KINDS:
        name = next(name for name in every if name.startswith(first) and name.endswith(last))
        status, said, run = resumed(name, kind)
        assert "Traceback" not in said and "Event loop" not in said
        if status == 0:
            assert name == "metrics.jsonl" or log(run) == whole, name
            if name != "rollouts/manifest.jsonl":  # what a cut one lacks does not count
                assert rollouts.verify(run / "rollouts").datasets == datasets, name
        else:
            assert status in (1, 2) and said.count("grre: ") == 1
            assert str(run / Path(*Path(name).parts[:2])) in said or name in said
