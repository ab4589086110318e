"""`grre.train`: questions and a reward function of one's own."""

import json
import re
from pathlib import Path

import pytest

import grre_jax as grre
from grre_jax import rollouts
from grre_jax.errors import UsageError
from grre_jax.tasks.datasets.questions import Questions
from grre_jax.training.config.run import from_dict

from .generation.conftest import chat_model  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_reports")

README = (Path(__file__).parents[1] / "README.md").read_text()
TINY = {
    "sampling": {"group_size": 4, "max_new_tokens": 4},
    "training": {"prompts_per_step": 4},
    "evaluation": {"questions": 4, "num_samples": 8, "greedy": False},
    "logging": {"tensorboard": False},
}
QUESTIONS = [{"prompt": f"{n}+2?", "answer": str(n + 2)} for n in range(8)]


@pytest.mark.slow
def test_the_readme_s_program_runs_as_it_stands(chat_model, tmp_path, monkeypatch):  # noqa: F811
    """But for the model's folder, the number of steps, and of groups and completions."""
    programs = re.findall(r"```python\n(.*?)```", README.split("## Algorithms")[0], re.DOTALL)
    program = next(program for program in programs if "train(" in program)
    assert program.count("\n") <= 20
    program = program.replace('"models/smollm2-135m"', repr(str(chat_model)))
    program = re.sub(r"steps=\d+", "steps=1, **TINY", program)
    monkeypatch.chdir(tmp_path)
    names = {"TINY": {name: TINY[name] for name in ("training", "evaluation", "logging")}}
    exec(program, names)
    run = names["run"]
    config = from_dict(json.loads((run.folder / "config.json").read_text()))
    assert config.regime.sync_interval == 4 and config.task.reward == ("function:lambda",)
    groups = list(rollouts.read(run.folder / "rollouts"))
    assert len(groups) == 4
    for group in groups:
        right = [float(group.answer in text) for text in group.texts]
        assert group.rewards.tolist() == right
    assert 0 <= run.accuracy <= 1 and len(run.evaluations) == 2
    with pytest.raises(UsageError, match="questions"):  # a run is resumed with its own alone
        grre.train(model=chat_model, questions=QUESTIONS[:3], run_dir=run.folder, resume=True)


@pytest.mark.slow
def test_a_data_set_and_its_splits(chat_model, tmp_path):  # noqa: F811
    datasets = pytest.importorskip("datasets")
    rows = [
        {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{n}+2"}],
         "solution": str(n + 2)}
        for n in range(4)
    ]  # fmt: skip
    run = grre.train(
        model=str(chat_model),
        questions=datasets.DatasetDict(
            train=datasets.Dataset.from_list(rows[:3]), test=datasets.Dataset.from_list(rows[3:])
        ),
        reward=[_right, _short],
        reward_weights=[1, 0.5],
        objective={"name": "rec_oneside_nois", "options": {"epsilon_high": 2.0}},
        steps=1,
        run_dir=tmp_path / "run",
        **TINY,
    )
    first, *_ = rollouts.read(run.folder / "rollouts")
    assert [m["role"] for m in first.extra["prompt_messages"]] == ["system", "user"]
    assert set(first.components) == {"_right", "_short", "correct"}


def _right(question, completion):
    return {"correct": question.answer in completion}


async def _short(question, completion):
    return None if "9" in completion else 1.0


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"sampling": {"group_siz": 4}}, "sampling.group_siz"),
        ({"optimizer": 3}, "optimizer"),
        ({"training": {"steps": -1}}, "steps"),
        ({"reward": 3}, "reward"),
        ({"reward": [len], "reward_weights": [1, 2]}, "reward_weights"),
        ({"questions": {"eval": []}}, "questions"),
        ({"model": "no/such-model"}, "model"),
        ({"objective": "reinforced"}, "reinforced"),
        ({"run_dir": "s3://bucket/run"}, "run_dir"),
    ],
)
def test_arguments_outside_their_domain_are_named(chat_model, tmp_path, changes, named):  # noqa: F811
    arguments = {"model": chat_model, "questions": QUESTIONS, "run_dir": tmp_path / "run"}
    with pytest.raises(UsageError, match=re.escape(named)):
        grre.train(**arguments | changes)
    assert not (tmp_path / "run").exists()


def test_the_questions_of_a_run_stay_those_that_it_began_with(chat_model, tmp_path):  # noqa: F811
    """Where it is neither resumed nor replaced, and where it is resumed with other ones."""
    run = tmp_path / "run"
    store = tmp_path / "run-questions"
    run.mkdir()
    store.mkdir()
    (run / "config.json").write_text("{}")
    text = "".join(json.dumps(row) + "\n" for row in QUESTIONS)
    (store / "train.jsonl").write_text(text)
    arguments = {"model": chat_model, "run_dir": run}
    with pytest.raises(UsageError, match="run_dir"):
        grre.train(questions=QUESTIONS[:3], **arguments)
    for others in (QUESTIONS[:3], {"train": QUESTIONS, "test": QUESTIONS[:1]}):
        with pytest.raises(UsageError, match="questions"):
            grre.train(questions=others, resume=True, **arguments)
    assert [file.name for file in store.iterdir()] == ["train.jsonl"]
    assert (store / "train.jsonl").read_text() == text


def test_records_of_questions(tmp_path):
    file = tmp_path / "questions.jsonl"
    parts = [{"type": "text", "text": "2+"}, {"type": "text", "text": "2"}]
    rows = [
        {"problem": "1+1", "target": 2},
        {"prompt": [{"role": "user", "content": parts}], "answer": "4"},
        {"question": "3+3", "ground_truth": "6", "prompt": None},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Questions(path=file)
    found = {question.prompt: question for question in task.all_questions()}
    assert {prompt: q.answer for prompt, q in found.items()} == {"1+1": "2", "2+2": "4", "3+3": "6"}
    assert all(question.messages is None for question in found.values())
    assert len(task.evaluation(9)) == 1
    assert task.verify(found["1+1"], " 2\n").correct and not task.verify(found["1+1"], "3").correct
