"""Guru-Math's Parquet: prompts and answers as they are, and questions held out of the one file."""

import pyarrow
import pytest
from pyarrow import parquet

from grre_jax import tasks

from . import published_samples

pytest.importorskip("math_verify")


def test_questions(tmp_path):
    path = published_samples.guru(tmp_path)
    task = tasks.build("guru_math", path=path, held_out=3, seed=1)
    held_out, drawn = task.evaluation(100), [task.question(place) for place in range(5)]
    assert len(held_out) == 3 and len({question.prompt for question in [*held_out, *drawn]}) == 8
    question = drawn[0]
    number = int(question.prompt.removeprefix("Find $").partition("^")[0])
    assert question.answer == str(number * number) and question.prompt.endswith("within \\boxed{}.")
    assert len(tasks.build("guru_math", path=path.parent.parent, held_out=3).evaluation(100)) == 3


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("7", "7"),
        ('["7"]', "7"),
        (["7"], "7"),
        (7, "7"),
        ("[1, 2)", "[1, 2)"),
        ('["1", "2"]', '["1", "2"]'),
    ],
)
def test_forms_of_the_truth(tmp_path, truth, answer):
    rows = [
        {
            "prompt": [
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "content": [{"type": "text", "text": t} for t in ("q", str(n))]},
            ],
            "reward_model": {"ground_truth": truth},
        }
        for n in range(3)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    question = tasks.build("guru_math", path=tmp_path / "a.parquet", held_out=1).question(0)
    assert question.answer == answer and question.prompt.startswith("Be brief.\n\nq")
