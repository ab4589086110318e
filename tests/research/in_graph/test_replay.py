"""A published run's final policy is computed again, and has the published greedy accuracy."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from grre_jax import models, sampling, tasks
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from research.in_graph import campaign as in_graph_campaign
from research.in_graph import replay as in_graph_replay
from research.in_graph import warm_start
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
    questions = LEARNING.task.evaluation(64)
    answers = sampling.sample(
        model,
        np.array([tokenizer.encode_prompt(question) for question in questions]),
        sampling.SamplingParams(temperature=0.0, max_new_tokens=LEARNING.task.answer_length),
        key=jax.random.key(0),
    )
    right = [
        LEARNING.task.verify(question, tokenizer.decode(row[:length])).reward
        for question, row, length in zip(
            questions, answers.tokens.reshape(64, -1), answers.lengths.reshape(-1), strict=True
        )
    ]
    assert np.mean(right) == pytest.approx(found["greedy_accuracy"][-1])
    assert 0 < np.mean(right) < 1


def test_a_start_has_its_figures_with_it(study):
    _, figures = warm_start.load(study[0] / "start_0.npz")
    assert set(figures) == {"accuracy", "greedy_accuracy", "pass_at_8"}
    assert 0 < figures["accuracy"] < figures["pass_at_8"] <= 1
    (record,) = map(json.loads, (study[0] / "runs.jsonl").read_text().splitlines())
    assert record["result"]["pass_at_8"][0] == figures["pass_at_8"]
    assert record["result"]["greedy_accuracy"][0] == figures["greedy_accuracy"]


def test_what_cannot_be_computed_again_is_refused(study, tmp_path):
    folder, run = study
    with pytest.raises(UsageError, match=f"no finished run 'a; seed 1': .*{run.key}"):
        replay(folder, "a; seed 1", tmp_path / "policy", CONSOLE)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not empty: name another folder"):
        replay(folder, run.key, tmp_path, CONSOLE)
    with pytest.raises(DataError, match=r"settings.json is no settings.json"):
        replay(tmp_path, run.key, tmp_path / "policy", CONSOLE)
    for name in ("runs.jsonl", "settings.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    settings = json.loads((tmp_path / "settings.json").read_text())
    settings["scale"]["random_streams"] = 1
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match="draws of version 1"):
        replay(tmp_path, run.key, tmp_path / "policy", CONSOLE)
    assert not (tmp_path / "policy").exists()


@pytest.mark.parametrize(
    ("task", "figures", "bound", "message"),
    [
        ("arithmetic", (0.3, 0.41), None, "greedy_accuracy 0.410 .*bound of 0.4: .*--greedy-bound"),
        ("arithmetic", (0.3, 0.41), 0.5, None),
        ("arithmetic", (0.3, 0.25), 0.2, "greedy_accuracy 0.250 .*bound of 0.2"),
        ("arithmetic", (0.3, 0.4), None, None),
        ("sharpening", (0.3, 1.0), None, None),
        ("sharpening", (0.6, 1.0), None, "accuracy 0.600 .*bound of 0.5: .* another --task$"),
    ],
)
def test_a_start_over_its_bound_stops_the_study_before_its_first_run(
    tmp_path, monkeypatch, task, figures, bound, message
):
    run = a_run()
    names = ("accuracy", "greedy_accuracy")
    monkeypatch.setattr(
        warm_start, "load", lambda path: ({}, dict(zip(names, figures, strict=True)))
    )
    computed = []
    scale = dataclasses.replace(TINY, task_name=task)
    campaign = Campaign(tmp_path, scale, ENTRIES, 1, CONSOLE, greedy_bound=bound)
    campaign._workers = SimpleNamespace(platform="cpu")
    monkeypatch.setattr(campaign, "_compute", lambda tasks, what, *_: computed.append(what))
    if message is None:
        campaign.complete([run], "runs")
    else:
        with pytest.raises(UsageError, match=f"the warm start of seed 0 has {message}"):
            campaign.complete([run], "runs")
    assert computed == ["warm starts"] + ["runs"] * (message is None)


def test_a_bound_that_is_no_share_is_refused(tmp_path):
    with pytest.raises(UsageError, match="greedy_bound=1.5 is no probability"):
        Campaign(tmp_path, TINY, ENTRIES, 1, CONSOLE, greedy_bound=1.5)
    with pytest.raises(UsageError, match="--task precedance: .*did you mean 'precedence'"):
        Campaign(tmp_path, dataclasses.replace(TINY, task_name="precedance"), ENTRIES, 1, CONSOLE)
