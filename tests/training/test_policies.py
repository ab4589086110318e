"""What is done with a run after it ended: it is read, evaluated and exported, and stays as it
was.
"""

import json
import shutil

import pytest

from grre_jax.errors import DataError
from grre_jax.training import policies
from grre_jax.training.evaluation import command


def test_evaluation_of_the_first_and_last_policy(copy):
    words = ["--evaluation.questions", "8"]
    result = command.evaluate_run(copy, words)
    assert result == json.loads((copy / "evaluation.json").read_text())
    assert result["questions"] == 8 and result["steps"] == [0, 8]
    assert result["first"]["kl_to_start"] == pytest.approx(0, abs=1e-6)
    assert result["last"]["kl_to_start"] > 0


@pytest.mark.parametrize(
    "name, text",
    [
        ("config.json", None),
        ("config.json", b"{"),
        ("config.json", b'{"name": "x", "stepz": 3}'),
        ("provenance.json", b"{}"),
        ("checkpoints", None),
    ],
)
def test_what_is_missing_or_damaged_is_named(copy, tmp_path, name, text):
    if name == "checkpoints":
        shutil.rmtree(copy / name)
    elif text is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(text)
    with pytest.raises(DataError, match=name.removesuffix("s")):
        policies.export(copy, tmp_path / "out")
    assert not (tmp_path / "out").exists() and text or not (copy / name).exists()
