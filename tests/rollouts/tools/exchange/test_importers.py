import json
import os
import re
from pathlib import Path

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.tools.exchange import importers

LINE = {
    "prompt": "2+2=",
    "answer": "4",
    "completions": [{"text": "4", "reward": 1}, {"text": "5", "reward": False}],
}
TOKENS = {
    "prompt": "2+2=",
    "prompt_tokens": [1, 2],
    "temperature": 0.5,
    "completions": [
        {
            "text": "4",
            "reward": 1.0,
            "tokens": [5, 9],
            "logprobs": [-0.5, -0.25],
            "source": "gpt",
            "finish_reason": "stop",
            "is_expert": True,
        },
        {"text": "", "reward": 0.0, "tokens": [9], "logprobs": [-3.0]},
    ],
}


def write_lines(path, *lines):
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return path


def solution(question="How many?", answer="1,234", correct=(True, False, True, True)):
    models = {
        m: {"is_correct": c, "solution": f"{m} says\nA: 7"}
        for m, c in zip(importers.GSM8K_MODELS, correct, strict=True)
    }
    return {"question": question, "ground_truth": f"It is <<1+1=2>>2.\nA: {answer}", **models}


def test_jsonl(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", LINE, "", TOKENS)
    rollouts.import_jsonl(
        path, tmp_path / "r", task="sums", contains=("gsm8k/test",), metadata={"who": "me"}
    )
    reader = rollouts.read(tmp_path / "r")
    text, tokens = reader
    assert (text.prompt, text.answer, text.texts, text.rewards.tolist()) == (
        "2+2=",
        "4",
        ["4", "5"],
        [1.0, 0.0],
    )
    assert (text.group_id, text.question_id, text.task, text.position) == (
        "mine:1",
        "mine/1",
        "sums",
        -1,
    )
    assert (
        text.behavior_logprobs is None
        and text.sources == ["imported"] * 2
        and text.lengths.tolist() == [0, 0]
    )
    assert (
        tokens.lengths.tolist() == [2, 1]
        and tokens.tokens.tolist() == [5, 9, 9]
        and tokens.prompt_tokens.tolist() == [1, 2]
    )
    assert tokens.behavior_logprobs.tolist() == [-0.5, -0.25, -3.0] and tokens.mask.tolist() == [
        1,
        1,
        1,
    ]
    assert (
        tokens.sources == ["gpt", "imported"]
        and tokens.finish_reasons == ["stop", "imported"]
        and tokens.temperature == 0.5
    )
    assert tokens.is_expert.tolist() == [1, 0] and text.is_expert.tolist() == [0, 0]
    metadata = reader.datasets[0].metadata
    assert (
        metadata["who"] == "me"
        and metadata["contains"] == ["gsm8k/test"]
        and metadata["source_file"] == "mine.jsonl"
    )
    assert reader.contains == {"gsm8k/test"} and rollouts.verify(tmp_path / "r").ok


def test_jsonl_with_other_names_and_unknown_fields(tmp_path):
    line = {
        "question": "q",
        "id": 7,
        "samples": [{"response": "a", "score": 0.5, "judge": "b"}, {"response": "c", "score": 1}],
        "split": "dev",
    }
    mapping = {
        "prompt": "question",
        "completions": "samples",
        "text": "response",
        "reward": "score",
        "question_id": "id",
    }
    rollouts.import_jsonl(write_lines(tmp_path / "a.jsonl", line), tmp_path / "r", mapping=mapping)
    (group,) = rollouts.read(tmp_path / "r")
    assert group.question_id == "7" and group.rewards.tolist() == [0.5, 1.0]
    assert group.extra == {"split": "dev", "completions": [{"judge": "b"}, {}]}


def changed(line, *path, to):
    line = json.loads(json.dumps(line))
    inner = line
    for key in path[:-1]:
        inner = inner[key]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: the line is a list; give a JSON object"),
        (changed(LINE, "prompt", to=...), "line 2: field prompt is missing .it has answer"),
        (
            changed(LINE, "prompt", to=3),
            "line 2: field prompt is a number .3.; give a string or a list",
        ),
        (changed(LINE, "completions", to=[]), "line 2: field completions is empty"),
        (
            changed(LINE, "completions", 1, to="4"),
            "line 2: completions.1. is a string; give a JSON object",
        ),
        (
            changed(LINE, "completions", 1, "reward", to=...),
            "line 2: field completions.1..reward is missing",
        ),
        (
            changed(LINE, "completions", 1, "reward", to="high"),
            "line 2: field completions.1..reward is a string; give true or false or a number",
        ),
        (
            changed(LINE, "completions", 0, "reward", to=float("inf")),
            r"line 2: field completions\[0\].reward is inf; give a finite number",
        ),
        (
            changed(LINE, "completions", 0, "finish_reason", to="eos"),
            "line 2: Group .*finish_reasons.*'eos'",
        ),
        (
            changed(LINE, "completions", 0, "logprobs", to=[-1]),
            "line 2: field completions.1..logprobs is missing where another",
        ),
        (
            changed(TOKENS, "prompt_tokens", to=...),
            "line 2: field prompt_tokens and the completions' tokens belong together",
        ),
        (
            changed(TOKENS, "completions", 1, "logprobs", to=[-1, -2]),
            "line 2: field completions.1..logprobs has 2 values for 1 tokens",
        ),
        (
            changed(TOKENS, "completions", 1, "logprobs", to=[2.0]),
            "line 2: Group .*behavior_logprobs is wrong",
        ),
        (changed(TOKENS, "top_p", to=3), "line 2: Group .*top_p"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_imported(tmp_path, line, message):
    path = write_lines(tmp_path / "bad.jsonl", LINE, line)
    with pytest.raises(DataError, match=re.escape(str(path)) + ", " + message):
        rollouts.import_jsonl(path, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_bad_files(tmp_path):
    with pytest.raises(DataError, match="missing.jsonl does not exist"):
        rollouts.import_jsonl(tmp_path / "missing.jsonl", tmp_path / "r")
    with pytest.raises(DataError, match="empty.jsonl has no groups"):
        rollouts.import_jsonl(write_lines(tmp_path / "empty.jsonl", ""), tmp_path / "r")
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "é"}\n'.encode("latin-1"))
    with pytest.raises(DataError, match="latin.jsonl, line 1: not JSON"):
        rollouts.import_jsonl(tmp_path / "latin.jsonl", tmp_path / "r")
    with pytest.raises(UsageError, match="'promt'.*prompt, completions"):
        rollouts.import_jsonl(tmp_path / "latin.jsonl", tmp_path / "r", mapping={"promt": "x"})


def test_the_same_file_is_not_imported_twice(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", LINE)
    name = rollouts.import_jsonl(path, tmp_path / "r")
    with pytest.raises(UsageError, match=f"already in .* as data set {name}"):
        rollouts.import_jsonl(path, tmp_path / "r")
    rollouts.import_jsonl(write_lines(tmp_path / "b.jsonl", TOKENS), tmp_path / "r")
    assert len(rollouts.read(tmp_path / "r")) == 2


def test_gsm8k_solutions(tmp_path):
    path = write_lines(tmp_path / "s.jsonl", solution(), solution("Why?", "-5", (False,) * 4))
    rollouts.import_gsm8k_solutions(path, tmp_path / "r")
    reader = rollouts.read(tmp_path / "r")
    first, second = reader
    assert (first.prompt, first.answer, first.question_id, first.task) == (
        "How many?",
        "1234",
        "gsm8k/test/0",
        "gsm8k",
    )
    assert first.rewards.tolist() == [1, 0, 1, 1] and first.sources == list(importers.GSM8K_MODELS)
    assert (
        first.texts[2] == "175b_finetuning says\nA: 7"
        and second.answer == "-5"
        and not second.has_reward_variance
    )
    assert "<<1+1=2>>" in first.extra["ground_truth"] and reader.contains == {"gsm8k/test"}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("ground_truth",),
            "no number",
            "line 1: field ground_truth does not end in 'A:' and a number",
        ),
        (("6b_finetuning",), ..., "line 1: field 6b_finetuning is missing"),
        (
            ("175b_verification", "is_correct"),
            1,
            "line 1: field 175b_verification.is_correct is a number .1.; give true or false",
        ),
        (("question",), None, "line 1: field question is null"),
    ],
)
def test_wrong_gsm8k_lines(tmp_path, path, value, message):
    file = write_lines(tmp_path / "s.jsonl", changed(solution(), *path, to=value))
    with pytest.raises(DataError, match=message):
        rollouts.import_gsm8k_solutions(file, tmp_path / "r")


def real_file():
    places = [Path(os.environ["GRRE_TEST_DATA"])] if "GRRE_TEST_DATA" in os.environ else []
    beside = [
        folder
        for parent in Path(__file__).resolve().parents[4:6]
        for folder in sorted(parent.glob("*/data"))
    ]
    found = [place / "gsm8k" / "example_model_solutions.jsonl" for place in places + beside]
    return next((path for path in found if path.is_file()), None)


@pytest.mark.skipif(
    real_file() is None,
    reason=(
        "GSM8K's example_model_solutions.jsonl is not here; GRRE_TEST_DATA names the folder with"
        " gsm8k/"
    ),
)
def test_the_real_gsm8k_solutions(tmp_path):
    rollouts.import_gsm8k_solutions(real_file(), tmp_path / "r")
    reader = rollouts.read(tmp_path / "r")
    entry = reader.datasets[0]
    assert (len(reader), entry.completions) == (1319, 5276) and reader.contains == {"gsm8k/test"}
    lines = [json.loads(line) for line in real_file().read_text(encoding="utf-8").splitlines()]
    for group, line in zip(reader, lines, strict=True):
        assert group.prompt == line["question"]
        assert [
            (text, bool(reward)) for text, reward in zip(group.texts, group.rewards, strict=True)
        ] == [(line[model]["solution"], line[model]["is_correct"]) for model in group.sources]
        float(group.answer)
    assert sum(group.has_reward_variance for group in reader) == 731
    assert rollouts.verify(tmp_path / "r").ok
