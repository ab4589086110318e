"""GSM8K's published solutions, imported and judged again: our verdicts are the published ones."""

import itertools
import json

import pytest

from grre_jax import rollouts, tasks
from grre_jax.rollouts.tools.reverify import reverify
from grre_jax.tasks.judging import InProcess

from ...tasks.conftest import find_gsm8k

FOLDER = find_gsm8k()


@pytest.mark.skipif(FOLDER is None, reason="GRRE_TEST_DATA names the folder with gsm8k/")
def test_a_few_solutions(tmp_path):
    with (FOLDER / "example_model_solutions.jsonl").open(encoding="utf-8") as file:
        lines = list(itertools.islice(file, 40))
    (tmp_path / "s.jsonl").write_text("".join(lines), encoding="utf-8")
    rollouts.import_rows("gsm8k-solutions", tmp_path / "s.jsonl", tmp_path / "imported")
    judge = InProcess(tasks.build("gsm8k"))
    changes = reverify(tmp_path / "imported", tmp_path / "judged", judge, {"task": "gsm8k"})
    assert changes.total() == 160 and all(before == now for before, now in changes)
    for line, group in zip(lines, rollouts.read(tmp_path / "judged"), strict=True):
        solutions = [json.loads(line)[model] for model in group.sources]
        assert group.texts == [solution["solution"] for solution in solutions]
        correct = [float(solution["is_correct"]) for solution in solutions]
        assert group.rewards.tolist() == group.components["correct"].tolist() == correct
