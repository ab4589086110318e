"""Trajectories of scripted policies: their tokens, rewards and turns, and environments that fail."""

import re
from pathlib import Path

import numpy as np
import pytest

from grre_jax import rollouts, sampling, tasks
from grre_jax.tasks import CharTokenizer, Question
from grre_jax.tasks.environments import Step
from grre_jax.tasks.environments.calculator import Calculation
from grre_jax.tasks.environments.runner import InProcessEnvironments
from grre_jax.training.actors.trajectories import Play, environment_seed

QUESTION = Question("calculator/37+58*19", "37+58*19", "1805")


def sampled(play, position, scripts, ended=True):
    """Finished trajectories of a question, of a policy that writes these texts."""
    address = sampling.Address(position)
    found = []
    for sample, script in enumerate(scripts):
        tokens = []
        spans = []
        mask = []
        reason = "turns"
        for turn, text in enumerate(script):
            written = play.tokenizer.encode_completion(text)[: None if ended else -1]
            spans.append(sampling.Turn(len(tokens), len(tokens) + len(written), ended))
            tokens += written
            mask += [True] * len(written)
            observation = play.respond(address, sample, turn, written).result(120)
            if observation is None:
                reason = "done"
                break
            if turn + 1 < len(script):
                tokens += observation.tokens
                mask += [False] * len(observation.tokens)
        trajectory = sampling.Trajectory(
            address,
            sample,
            tokens=np.array(tokens, np.int32),
            mask=np.array(mask, bool),
            logprobs={},
            turns=tuple(spans),
            reason=reason,
        )
        found.append(trajectory)
    return found


def group(play, question, position, scripts, limit=99, **options):
    prompt = play.open(question, position, limit=limit)
    found = [] if prompt is None else sampled(play, position, scripts, **options)
    fields = play.fields(question, position, found)
    return rollouts.Group(group_id="g", prompt_tokens=prompt, **fields)


def playing(task, samples, runner=None):
    return Play(task, task.tokenizer, runner or InProcessEnvironments(task), 3, samples)


def test_a_group_of_trajectories_of_different_lengths():
    task = tasks.build("calculator")
    right, wrong, cut = ["37+58=", "95*19=", "1805"], ["1805="], ["7", "8"]
    made = group(playing(task, 3), QUESTION, 5, [right, wrong, cut])
    assert made.prompt == "37+58*19"
    assert task.tokenizer.decode(made.prompt_tokens) == "37+58*19>"
    assert made.texts == ["37+58=$95>95*19=$1805>1805$", "1805=$", "7$"]
    tokens = np.split(made.tokens, made.offsets[1:-1])
    assert [*map(task.tokenizer.decode, tokens)] == made.texts
    assert made.rewards.tolist() == [1, 0, 0] and made.correct.tolist() == [True, False, False]
    assert made.finish_reasons == ["done", "turns", "done"]
    assert made.turns(0) == made.turns(0, "turn_texts") == [(0, 7), (10, 17), (22, 27)]
    assert made.turn_rewards.tolist() == [0, 0, 1, 0, 0]
    assert (made.environment, made.environment_version) == ("calculator", "1")
    assert made.environment_seed == environment_seed(3, 5, 0) != environment_seed(3, 5, 1)
    assert "".join(np.array([*made.texts[0]])[made.mask[:27] != 0]) == "37+58=$95*19=$1805$"
    # Turns that were cut have no end token.
    made = group(playing(task, 1), QUESTION, 0, [["1+1=", "5"]], ended=False)
    assert made.texts == ["1+1=2>5"] and made.turns(0) == [(0, 4), (6, 7)]


def test_components_are_those_of_the_last_turn():
    class Scored(Calculation):
        def step(self, action):
            step = super().step(action)
            parts = {"right": step.reward, "short": None} if step.done else None
            return step._replace(components=parts)

    task = tasks.build("calculator")
    task.environment = lambda: Scored(None)
    made = group(playing(task, 3), QUESTION, 0, [["37+58=", "95*19=", "1805"], ["1"], ["1+1="]])
    assert made.components["right"].tolist()[:2] == [1.0, 0.0]
    assert np.isnan(made.components["right"][2]) and np.isnan(made.components["short"]).all()
    assert made.rewards.tolist() == [1.0, 0.0, 0.0]


def test_a_demonstration_is_the_trajectory_of_its_turns():
    task = tasks.build("calculator", flaw=0.5)
    play, right = playing(task, 1), 0
    for position in range(20):
        question = task.question(position)
        turns = task.demonstration(question, environment_seed(3, position, 0))
        fields = play.demonstration(question, position, turns)
        again = group(play, question, position, [turns])
        assert rollouts.Group(group_id="g", **fields) == again
        right += int(again.rewards[0])
        assert (again.rewards[0] == 1) == (len(turns) == 3)
    assert 0 < right < 20


class Counting:
    """Answers with the number of its steps, which never end it; to "9" with what has no token."""

    name, separator, tokenizer = "counting", ">", CharTokenizer("0123456789>$")

    def environment(self):
        return Counting()

    def reset(self, question, seed):
        self.steps = 0
        return [{"role": "user", "content": question.prompt}]

    def step(self, action):
        self.steps += 1
        return Step("é" if action == "9" else str(self.steps))


def test_no_trajectory_goes_on_in_the_environment_of_an_earlier_one():
    """Neither of a demonstration that does not end it, nor of one whose answer has no tokens."""
    task, question = Counting(), Question("q", "1", "1")
    runner = InProcessEnvironments(task)
    for _ in range(2):
        fields = playing(task, 1, runner).demonstration(question, 0, ["1", "2"])
        assert fields["texts"] == ["1$1>2$"]
    failed = group(playing(task, 1, runner), question, 0, [["9", "1"]])
    assert failed.finish_reasons == ["failed"]
    made = group(playing(task, 1, runner), question, 0, [["1", "2"]])
    assert made.texts == ["1$1>2$"]


BAD = """
from grre_jax.tasks import CharTokenizer

class Bad:
    name, tokenizer = "bad", CharTokenizer("abcdefghijklmnopqrstuvwxyz?!$")
    def environment(self): return self
    def question(self, position): pass
    def evaluation(self, count): return []
    def reset(self, question, seed):
        if question.answer == "reset": raise ValueError("no beginning")
        return [{"role": "user", "content": "?"}]
    def step(self, action): raise ValueError("no step")

def build(): return Bad()
"""


def test_the_agent_of_the_page_walks_to_its_room(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()
    section = page.split("## An environment of your own")[1]
    source = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    (tmp_path / "corridor.py").write_text(source)
    assert len(source.splitlines()) <= 60
    task = tasks.build(f"{tmp_path / 'corridor.py'}:build", seed=1, rooms=4)
    question = task.question(0)
    made = group(playing(task, 2), question, 0, [["r"] * 4, ["l"] * 4], ended=False)
    goal, room = map(int, made.prompt.split("#"))
    assert goal == int(question.answer) != room
    assert made.rewards.tolist() == [float(goal > room), float(goal < room)]
    assert made.turn_counts.max() == 4 and made.turn_counts.min() == abs(goal - room)


@pytest.mark.parametrize(
    "kind, reason, limit",
    [("reset", "no beginning", 9), ("step", "no step", 9), ("wide", "1 tokens", 0)],
)
def test_an_environment_that_fails_fails_its_group(tmp_path, kind, reason, limit):
    (tmp_path / "bad.py").write_text(BAD)
    task = tasks.build(f"{tmp_path / 'bad.py'}:build")
    made = group(playing(task, 2), Question("q", "!", kind), 0, [["good"], ["over"]], limit=limit)
    assert made.finish_reasons == ["failed"] * 2 and np.isnan(made.rewards).all()
    assert all(reason in text for text in made.extra["verify_reasons"])
    assert made.lengths.any() == (kind == "step")
