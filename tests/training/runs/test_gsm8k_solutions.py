"""GSM8K's published solutions the whole way: imported, judged again, scored, exported and read
back.
"""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from grre_jax import rollouts, tasks
from grre_jax.rollouts.tools.exchange.exporters import export
from grre_jax.rollouts.tools.rescore import Scorer, rescore
from grre_jax.rollouts.tools.reverify import reverify
from grre_jax.tasks.judging import InProcess


def _file():
    places = [Path(os.environ["GRRE_TEST_DATA"])] if "GRRE_TEST_DATA" in os.environ else []
    beside = [
        folder
        for parent in Path(__file__).resolve().parents[3:5]
        for folder in sorted(parent.glob("*/data"))
    ]
    found = [place / "gsm8k" / "example_model_solutions.jsonl" for place in places + beside]
    return next((path for path in found if path.is_file()), None)


class Letters:
    """A token a letter; the end is token 0."""

    fingerprint = "letters"
    encode_prompt = staticmethod(lambda question: [ord(letter) for letter in question.prompt])
    encode_completion = staticmethod(lambda text: [*map(ord, text), 0])


def _walk(count, folder):
    """(imported, reverified, rescored and what came back from Parquet) of the file's first
    questions; the scores are made up.
    """
    with (
        _file().open(encoding="utf-8") as lines,
        (folder / "s.jsonl").open("w", encoding="utf-8") as part,
    ):
        part.writelines(itertools.islice(lines, count))
    rollouts.import_gsm8k_solutions(folder / "s.jsonl", folder / "imported")
    changes = reverify(
        folder / "imported",
        folder / "reverified",
        InProcess(tasks.build("gsm8k")),
        {"task": "gsm8k"},
    )
    draw = np.random.default_rng(0)
    scorer = Scorer(
        lambda groups, _: [
            -draw.exponential(size=len(g.tokens)).astype(np.float32) for g in groups
        ],
        Letters(),
        1 << 21,
        1 << 20,
        "float32",
        {},
    )
    rescore(folder / "reverified", folder / "rescored", scorer)
    export(folder / "rescored", folder / "rescored.parquet")
    rollouts.import_rows("parquet", folder / "rescored.parquet", folder / "back")
    return changes, *(
        rollouts.read(folder / name) for name in ("imported", "reverified", "rescored", "back")
    )


def _check(count, folder):
    changes, imported, reverified, rescored, back = _walk(count, folder)
    assert changes.completions == 4 * count and not changes.counts and not changes.failures
    assert list(back) == list(rescored) and len(back) == len(imported) == count
    assert [step["operation"] for step in back.datasets[0].metadata["history"]] == [
        "reverify",
        "rescore",
        "import",
    ]
    for line, first, judged, group in zip(
        (folder / "s.jsonl").open(encoding="utf-8"), imported, reverified, back, strict=True
    ):
        solutions = json.loads(line)
        assert group.texts == [solutions[model]["solution"] for model in group.sources]
        assert group.rewards.tolist() == [
            float(solutions[model]["is_correct"]) for model in group.sources
        ]
        assert (
            judged.components["correct"].tolist()
            == first.rewards.tolist()
            == group.extra["rewards_before"][0]["rewards"]
        )
        assert (
            bytes(group.tokens[:-1][: group.lengths[0] - 1].astype(np.uint32)).decode("utf-32-le")
            == group.texts[0]
        )
        assert len(group.behavior_logprobs) == len(group.tokens) == sum(map(len, group.texts)) + 4


REASON = (
    "GSM8K's example_model_solutions.jsonl is not here; GRRE_TEST_DATA names the folder with gsm8k/"
)


@pytest.mark.skipif(_file() is None, reason=REASON)
def test_a_few_solutions(tmp_path):
    _check(40, tmp_path)
