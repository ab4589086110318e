import json
import runpy
import sys
from pathlib import Path

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError

LINE = {
    "prompt": "2+2=",
    "answer": "4",
    "completions": [{"text": "4", "reward": 1}, {"text": "5", "reward": False}],
}


def write_lines(path, *lines):
    path.write_text("\n".join(json.dumps(line) if line else "" for line in lines))
    return path


def test_lines_of_json(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", LINE, "", LINE | {"prompt": "2*2="})
    how = {"task": "sums", "contains": ("gsm8k/test",)}
    rollouts.import_rows("jsonl", path, tmp_path / "r", **how)
    text, other = reader = rollouts.read(tmp_path / "r")
    assert (text.group_id, text.question_id, text.task) == ("mine:1", "mine:1", "sums")
    assert (text.texts, text.rewards.tolist(), text.answer) == (["4", "5"], [1.0, 0.0], "4")
    assert other.group_id == "mine:3"
    assert reader.datasets[0].metadata["source_file"] == "mine.jsonl"
    assert reader.contains == {"gsm8k/test"}


def test_a_column_of_the_mapping_that_no_row_has_is_refused(tmp_path):
    """A misspelt optional one, such as the answer's, would silently be empty."""
    line = {"prompt": "2+2=", "parts": [{"response": "4", "reward": 1}]}
    path = write_lines(tmp_path / "a.jsonl", line, line | {"solution": "4"})
    mapping = {"completions": "parts", "text": "response", "answer": "solution"}
    rollouts.import_rows("jsonl", path, tmp_path / "r", mapping=mapping)
    assert [group.answer for group in rollouts.read(tmp_path / "r")] == ["", "4"]
    with pytest.raises(DataError, match="mapping.*solutoin"):
        wrong = mapping | {"answer": "solutoin"}
        rollouts.import_rows("jsonl", path, tmp_path / "s", mapping=wrong)
    assert not len(rollouts.read(tmp_path / "s"))


def test_benchmark_splits_are_a_list_of_names(tmp_path):
    """A text alone would be the splits g, s, m, ..., which no evaluation is refused for."""
    path = write_lines(tmp_path / "a.jsonl", LINE)
    with pytest.raises(UsageError, match="contains"):
        rollouts.import_rows("jsonl", path, tmp_path / "r", contains="gsm8k/test")
    group = rollouts.Group(group_id="a", prompt="p", texts=["t"], rewards=[1])
    with pytest.raises(UsageError, match="contains"):
        rollouts.write(tmp_path / "w", [group], writer="me", metadata={"contains": "gsm8k/test"})


@pytest.mark.parametrize("mapping", [{"promt": "x"}, {"prompt": "a", "text": "a"}])
def test_wrong_mappings_are_refused(tmp_path, mapping):
    path = write_lines(tmp_path / "a.jsonl", LINE)
    with pytest.raises(UsageError, match="mapping"):
        rollouts.import_rows("jsonl", path, tmp_path / "r", mapping=mapping)


def test_lines_of_verl(tmp_path):
    """As its trainer.rollout_data_dir has them; the batch is balanced: out of order."""
    lines = [
        {"input": prompt, "output": f"{prompt}{k}", "gts": "7", "score": k, "step": 3, "acc": k}
        for k in range(2)
        for prompt in "ab"
    ]
    path = write_lines(tmp_path / "3.jsonl", *lines)
    rollouts.import_rows("verl", path, tmp_path / "r")
    first, second = rollouts.read(tmp_path / "r")
    assert (first.prompt, first.texts, first.answer) == ("a", ["a0", "a1"], "7")
    assert second.extra == {"step": 3, "completions": [{"acc": 0}, {"acc": 1}]}


def test_gsm8k_solutions(tmp_path, monkeypatch):
    script = Path(__file__).parents[4] / "scripts" / "gsm8k_solutions.py"
    models = runpy.run_path(str(script))["MODELS"]
    solution = {"question": "How many?", "ground_truth": "It is 2.\nA: 1,234", "id": 3}
    for model in models:
        solution[model] = {"is_correct": "verification" in model, "solution": "A: 7"}
    path = write_lines(tmp_path / "s.jsonl", solution)
    monkeypatch.setattr(sys, "argv", ["script", str(path), str(tmp_path / "rows.jsonl")])
    runpy.run_path(str(script), run_name="__main__")
    how = {"task": "gsm8k", "contains": ("gsm8k/test",)}
    rollouts.import_rows("jsonl", tmp_path / "rows.jsonl", tmp_path / "r", **how)
    (group,) = reader = rollouts.read(tmp_path / "r")
    assert (group.prompt, group.answer, group.task) == ("How many?", "1234", "gsm8k")
    assert group.question_id == "gsm8k/test/0" and group.sources == list(models)
    assert group.rewards.tolist() == [0, 1, 0, 1] and reader.contains == {"gsm8k/test"}
    assert group.extra == {"ground_truth": solution["ground_truth"], "id": 3}
