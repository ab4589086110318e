"""Records of stored questions with wrong fields."""

import pytest

from grre_jax.errors import DataError
from grre_jax.tasks.datasets import competition_math, gsm8k, guru_math, questions, toolace

USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("kind", "record", "field"),
    [
        (gsm8k.GSM8K, {"question": "q", "answer": "18"}, "answer"),
        (competition_math.CompetitionMath, {"problem": ["p"], "solution": ""}, "problem"),
        (guru_math.GuruMath, {"prompt": [USER], "reward_model": {"ground_truth": [[]]}}, "truth"),
        (toolace.ToolACE, {"system": "s", "conversations": [{"from": "robot"}]}, "conversations"),
        (questions.Questions, {"text": "q"}, "prompt or question or problem"),
        (questions.Questions, {"question": [USER | {"content": 3}]}, "content"),
    ],
)
def test_wrong_fields_are_named(tmp_path, kind, record, field):
    with pytest.raises(DataError, match=f"^here: .*{field}.*: expected"):
        list(kind(path=tmp_path)._questions_of("train", record, "here"))
