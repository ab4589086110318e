"""A published run's final policy is computed again, and has the published greedy accuracy."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from grre_jax import models, sampling, tasks
from grre_jax.console import make_console
from research.in_graph import campaign as in_graph_campaign, replay as in_graph_replay
from research.in_graph.campaign import Campaign
from research.in_graph.replay import replay
from tests.research.tiny import TINY

from .test_campaign import ENTRIES, a_run

LEARNING = dataclasses.replace(
    TINY,
    task_options=(("operands", 3), ("answers", "short")),
    questions=64,
    imitation_steps=300,
)
CONSOLE = make_console(quiet=True)


class HereAndNow:
    """Workers that compute in this process."""

    platform, machine = "cpu", "here"

    def __init__(self, count):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def answers(self, asked):
        return [(task, task[0](*task[1:])) for task in asked]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The folder of a study with one run, and the run."""
    folder, run = tmp_path_factory.mktemp("study"), a_run(learning_rate=1e-2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_graph_campaign, "Workers", HereAndNow)
        with Campaign(folder, LEARNING, ENTRIES[:1], 1, CONSOLE) as campaign:
            campaign.complete([run], "test")
            assert campaign.starts([run])[0]["seed"] == run.seed
    return folder, run


@pytest.fixture(autouse=True)
def workers(monkeypatch):
    monkeypatch.setattr(in_graph_replay, "Workers", HereAndNow)


def test_a_final_policy_has_the_stored_greedy_accuracy(study, tmp_path):
    folder, run = study
    record = json.loads((folder / "runs.jsonl").read_text())
    (folder / "start_0.npz").unlink()  # made again
    found = replay(folder, run.key, tmp_path / "policy", CONSOLE)
    assert found == record["result"]
    assert len(found["greedy_accuracy"]) == len(found["accuracy"]) == 3
    model = models.load(tmp_path / "policy")
    tokenizer = tasks.load_tokenizer(tmp_path / "policy")
    task = LEARNING.task
    questions = task.evaluation(64)
    answers = sampling.sample(
        model,
        np.array([tokenizer.encode_prompt(question) for question in questions]),
        sampling.SamplingParams(temperature=0.0, max_new_tokens=task.answer_length),
        key=jax.random.key(0),
    )
    drawn = zip(answers.tokens[:, 0], answers.lengths[:, 0], strict=True)
    texts = [tokenizer.decode(row[:length]) for row, length in drawn]
    right = [task.verify(*pair).reward for pair in zip(questions, texts, strict=True)]
    assert np.mean(right) == pytest.approx(found["greedy_accuracy"][-1])
    assert 0 < np.mean(right) < 1
