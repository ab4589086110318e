import json

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.tools.exchange import sources

LINE = {
    "prompt": "2+2=",
    "answer": "4",
    "completions": [{"text": "4", "reward": 1}, {"text": "5", "reward": False}],
}


def write_lines(path, *lines):
    path.write_text("\n".join(json.dumps(line) if line else "" for line in lines))
    return path


def solution(answer, correct):
    models = {
        model: {"is_correct": right, "solution": f"{model} says\nA: 7"}
        for model, right in zip(sources.GSM8K_MODELS, correct, strict=True)
    }
    return {"question": "How many?", "ground_truth": f"It is 2.\nA: {answer}", **models}


def test_jsonl(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", LINE, "", LINE | {"prompt": "2*2="})
    how = {"task": "sums", "contains": ("gsm8k/test",)}
    rollouts.import_rows("jsonl", path, tmp_path / "r", **how)
    text, other = reader = rollouts.read(tmp_path / "r")
    assert (text.group_id, text.question_id, text.task) == ("mine:1", "mine:1", "sums")
    assert (text.texts, text.rewards.tolist(), text.answer) == (["4", "5"], [1.0, 0.0], "4")
    assert (text.position, text.behavior_logprobs, len(text.tokens)) == (-1, None, 0)
    assert other.group_id == "mine:3" and other.sources == ["imported"] * 2
    metadata = reader.datasets[0].metadata
    assert metadata["source_file"] == "mine.jsonl"
    assert reader.contains == {"gsm8k/test"}


def test_other_names_and_unknown_fields(tmp_path):
    samples = [{"response": "a", "score": 0.5, "judge": "b"}, {"response": "c", "score": 1}]
    line = {"question": "q", "id": 7, "samples": samples, "split": "dev"}
    mapping = {"prompt": "question", "completions": "samples", "text": "response"}
    mapping |= {"reward": "score", "question_id": "id"}
    rollouts.import_rows(
        "jsonl", write_lines(tmp_path / "a.jsonl", line), tmp_path / "r", mapping=mapping
    )
    (group,) = rollouts.read(tmp_path / "r")
    assert group.question_id == "7" and group.rewards.tolist() == [0.5, 1.0]
    assert group.extra == {"split": "dev", "completions": [{"judge": "b"}, {}]}


def test_a_column_of_the_mapping_that_no_row_has_is_refused(tmp_path):
    """A misspelt optional one, such as the answer's, would silently be empty."""
    line = {"p": "2+2=", "parts": [{"t": "4", "reward": 1}, {"t": "5", "reward": 0, "why": "x"}]}
    path = write_lines(tmp_path / "a.jsonl", line, line | {"solution": "4"})
    mapping = {"prompt": "p", "completions": "parts", "text": "t", "source": "why"}
    with pytest.raises(DataError, match="mapping.*solutoin"):
        rollouts.import_rows(
            "jsonl", path, tmp_path / "r", mapping=mapping | {"answer": "solutoin"}
        )
    assert not (tmp_path / "r").exists()
    rollouts.import_rows("jsonl", path, tmp_path / "r", mapping=mapping | {"answer": "solution"})
    assert [group.answer for group in rollouts.read(tmp_path / "r")] == ["", "4"]


@pytest.mark.parametrize("contains", ["gsm8k/test", [3]])
def test_benchmark_splits_are_a_list_of_names(tmp_path, contains):
    """A text alone would be the splits g, s, m, ..., which no evaluation is refused for."""
    path = write_lines(tmp_path / "a.jsonl", LINE)
    with pytest.raises(UsageError, match="contains"):
        rollouts.import_rows("jsonl", path, tmp_path / "r", contains=contains)
    rollouts.import_rows("jsonl", path, tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    with pytest.raises(UsageError, match="contains"):
        rollouts.write(tmp_path / "w", [group], writer="me", metadata={"contains": contains})


def test_bad_files(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", "")
    with pytest.raises(DataError, match="a.jsonl"):
        rollouts.import_rows("jsonl", path, tmp_path / "r")
    for mapping in ({"promt": "x"}, {"prompt": 3}, {"prompt": "a", "text": "a"}):
        with pytest.raises(UsageError, match="mapping.*" + next(iter(mapping))):
            rollouts.import_rows("jsonl", path, tmp_path / "r", mapping=mapping)


VERL_LINES = [  # as verl's trainer.rollout_data_dir has them; the batch is balanced: out of order
    {"input": prompt, "output": f"{prompt}{k}", "gts": "7", "score": k, "step": 3, "acc": k}
    for k in range(2)
    for prompt in "ab"
]


def test_lines_of_verl(tmp_path):
    path = write_lines(tmp_path / "3.jsonl", *VERL_LINES)
    rollouts.import_rows("verl", path, tmp_path / "r")
    first, second = rollouts.read(tmp_path / "r")
    assert (first.prompt, first.texts, first.answer) == ("a", ["a0", "a1"], "7")
    assert second.rewards.tolist() == [0, 1] and second.extra["step"] == 3
    assert second.extra["completions"] == [{"acc": 0}, {"acc": 1}]


def test_gsm8k_solutions(tmp_path):
    lines = solution("1,234", (True, False, True, True)), solution("-5", (False,) * 4)
    path = write_lines(tmp_path / "s.jsonl", *lines)
    rollouts.import_rows("gsm8k-solutions", path, tmp_path / "r")
    reader = rollouts.read(tmp_path / "r")
    first, second = reader
    assert (first.prompt, first.answer, first.task) == ("How many?", "1234", "gsm8k")
    assert first.question_id == "gsm8k/test/0" and first.sources == list(sources.GSM8K_MODELS)
    assert first.rewards.tolist() == [1, 0, 1, 1] and second.answer == "-5"
    assert reader.contains == {"gsm8k/test"}
    path = write_lines(tmp_path / "t.jsonl", solution("none", (True,) * 4))
    with pytest.raises(DataError, match="line 1: field ground_truth"):
        rollouts.import_rows("gsm8k-solutions", path, tmp_path / "r")
