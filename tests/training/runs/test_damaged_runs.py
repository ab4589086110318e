"""Each file below a finished run's folder deleted, emptied or cut in half, and the run resumed:
refused by name, put right or harmless, never a traceback.
"""

import dataclasses
import shutil
from pathlib import Path

import pytest

from grre_jax import rollouts
from grre_jax.cli import entry
from grre_jax.training.policies import load_config

from ...run_processes import log, written

# One of each kind, by what its name begins and ends with.
KINDS = (
    ("config.json", "", "cut"),
    ("metrics.jsonl", "", "deleted"),
    ("rollouts/manifest.jsonl", "", "cut"),
    ("rollouts/", ".array_record-00000-of-00001", "deleted"),
    ("checkpoints/0/params_checksums", "_METADATA", "emptied"),
    ("checkpoints/8/", "training/manifest.ocdbt", "cut"),
)


def damage(path, kind):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if kind == "cut" else b"")
    if kind == "deleted":
        path.unlink()


@pytest.fixture
def resumed(tiny_run, tmp_path, no_reports, capfd):
    """`resumed(name, kind)`: (status, what was said, the folder) of a copy of the run that is
    resumed for a step more with that file damaged.
    """
    run = tmp_path / "run"
    config = dataclasses.replace(load_config(tiny_run), run_dir=str(run))
    file = written(config)

    def resume(name="", kind=""):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(tiny_run, run)
        (run / "config.json").write_text(config.to_json())
        if name:
            damage(run / name, kind)
        capfd.readouterr()
        status = entry.main(["train", str(file), "--resume", "--training.steps", "9"])
        return status, capfd.readouterr().err, run

    return resume


def test_a_file_of_each_kind(tiny_run, resumed):
    status, said, run = resumed()
    assert status == 0, said
    whole, datasets = log(run), rollouts.verify(run / "rollouts").datasets
    files = [path for path in sorted(tiny_run.rglob("*")) if path.is_file()]
    every = [str(path.relative_to(tiny_run)) for path in files]
    for first, last, kind in KINDS:
        name = next(name for name in every if name.startswith(first) and name.endswith(last))
        status, said, run = resumed(name, kind)
        what = f"{name} {kind}: {status} {said}"
        assert "Traceback" not in said and "Event loop" not in said, what
        if status == 0:
            assert name == "metrics.jsonl" or log(run) == whole, what
            if name != "rollouts/manifest.jsonl":  # what a cut one lacks does not count
                assert rollouts.verify(run / "rollouts").datasets == datasets, what
        else:
            named = str(run / Path(*Path(name).parts[:2]))
            assert (
                status in (1, 2) and said.count("grre: ") == 1 and (named in said or name in said)
            ), what
