"""What is done with a run after it ended: it is read, evaluated and exported, and stays as it
was.
"""

import json
import shutil

import pytest

from grre_jax.errors import DataError
from grre_jax.training import policies
from grre_jax.training.evaluation import command


@pytest.fixture
def copy(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "copy")


def test_a_folder_without_a_configuration(tmp_path):
    with pytest.raises(DataError, match="config.json"):
        policies.load_config(tmp_path)


@pytest.mark.parametrize(
    "text",
    [b"{", b"\xff\xfe", b'{"name": "x", "stepz": 3}'],
)
def test_a_damaged_configuration(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(DataError, match="config.json"):
        policies.load_config(tmp_path)


def test_evaluation_of_the_first_and_last_policy(copy):
    words = ["--evaluation.questions", "8"]
    result = command.evaluate_run(copy, words)
    assert result == json.loads((copy / "evaluation.json").read_text())
    assert result["questions"] == 8 and result["steps"] == [0, 8]
    assert result["first"]["kl_to_start"] == pytest.approx(0, abs=1e-6)
    assert result["last"]["kl_to_start"] > 0


@pytest.mark.parametrize("text", [b"{", b"{}"])
def test_a_damaged_provenance_is_named(copy, text, tmp_path):
    (copy / "provenance.json").write_bytes(text)
    with pytest.raises(DataError, match="provenance.json"):
        policies.export(copy, tmp_path / "out")


def test_a_run_without_checkpoints(copy, tmp_path):
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(DataError, match="checkpoint"):
        policies.export(copy, tmp_path / "out")
    assert not (copy / "checkpoints").exists()
    (copy / "checkpoints").mkdir()
    with pytest.raises(DataError, match="checkpoint"):
        policies.export(copy, tmp_path / "out")
