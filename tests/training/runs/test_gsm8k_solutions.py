"""GSM8K's published solutions, imported and judged again: our verdicts are the published ones."""

import itertools
import json
import os
from pathlib import Path

import pytest

from grre_jax import rollouts, tasks
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


def _check(count, folder):
    with _file().open(encoding="utf-8") as file:
        lines = list(itertools.islice(file, count))
    (folder / "s.jsonl").write_text("".join(lines), encoding="utf-8")
    rollouts.import_gsm8k_solutions(folder / "s.jsonl", folder / "imported")
    judge = InProcess(tasks.build("gsm8k"))
    changes = reverify(folder / "imported", folder / "judged", judge, {"task": "gsm8k"})
    assert changes.completions == 4 * count and not changes.counts and not changes.failures
    for line, group in zip(lines, rollouts.read(folder / "judged"), strict=True):
        solutions = [json.loads(line)[model] for model in group.sources]
        correct = [float(solution["is_correct"]) for solution in solutions]
        assert group.texts == [solution["solution"] for solution in solutions]
        assert group.rewards.tolist() == group.components["correct"].tolist() == correct


REASON = (
    "GSM8K's example_model_solutions.jsonl is not here; GRRE_TEST_DATA names the folder with gsm8k/"
)


@pytest.mark.skipif(_file() is None, reason=REASON)
def test_a_few_solutions(tmp_path):
    _check(40, tmp_path)
