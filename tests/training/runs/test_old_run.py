"""A run folder of an older version: read, evaluated, exported, trained on and reported.

fixtures/run_before_the_layout.tar.xz was written by the commit that the JSON beside it names, with
the command there; the JSON also has what that commit made of the folder. Names of fields that were
changed since are among its settings.
"""

import json
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from grre_jax import rollouts
from grre_jax.cli import main
from grre_jax.reporting import read_metrics

FIXTURE = Path(__file__).parent / "fixtures" / "run_before_the_layout"
EXPECTED = json.loads(FIXTURE.with_suffix(".json").read_text())
CONFIG = Path(__file__).parents[3] / "configs" / "arithmetic.py"
OFFLINE = """
--run-dir offline --seed 3 --model.path small/model --data.path small/rollouts
--task.options.operands 2 --sampling.group-size 4 --sampling.max-prompt-tokens 4
--sampling.max-new-tokens 3 --sampling.prompts-per-call 8 --regime.sync-interval 1
--training.steps 3 --training.prompts-per-step 4 --training.pack-length 20
--training.packs-per-microbatch 3 --objective.name rec_oneside_nois
--objective.options.singleton_baseline mean --optimizer.learning-rate 0.0003
--warm-start.steps 0 --evaluation.questions 0 --data.drop-zero-variance false
--checkpoint.every 2 --checkpoint.keep 1 --checkpoint.export false
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The old run's folder, "small" in the working directory."""
    with tarfile.open(FIXTURE.with_suffix(".tar.xz")) as tar:
        tar.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return Path("small")


@pytest.mark.slow
def test_its_data_and_its_checkpoint_are_those_that_it_wrote_and_trained_on(folder):
    assert main(["rollouts", "verify", "small/rollouts"]) == 0
    groups = list(rollouts.read(folder / "rollouts"))
    assert [g.position for g in groups] == list(range(12))
    logged = [row["reward"] for row in read_metrics(folder)["train"]]
    stored = np.array([g.rewards.mean() for g in groups]).reshape(3, 4).mean(axis=1)
    np.testing.assert_allclose(stored, logged, atol=1e-7)
    assert main(["export", "small", "exported"]) == 0
    exported = load_file("exported/model.safetensors")
    stored = load_file("small/model/model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, exported, stored)


@pytest.mark.slow
def test_a_run_trains_on_its_data_as_one_did(folder):
    """From its model."""
    assert main(["train", str(CONFIG), *OFFLINE.split()]) == 0
    rows = read_metrics("offline")["train"]
    for row, expected in zip(rows, EXPECTED["offline"], strict=True):
        found = {name: row[name] for name in expected}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
