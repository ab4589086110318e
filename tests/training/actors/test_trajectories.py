"""Trajectories of scripted policies: their tokens, rewards and turns, and environments that fail."""

import re
from pathlib import Path

import numpy as np
import pytest

from grre_jax import rollouts, sampling, tasks
from grre_jax.tasks import CharTokenizer, Question
from grre_jax.tasks.environments import Step
from grre_jax.tasks.environments.environment import InProcessEnvironments
from grre_jax.training.actors.trajectories import Play, environment_seed

from ...conftest import CALCULATOR

QUESTION = Question("calculator/37+58*19", "37+58*19", "1805")


def sampled(play, position, scripts, ended):
    """Finished trajectories of a question, of a policy that writes these texts."""
    address = sampling.Address(position)
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
                tokens += observation
                mask += [False] * len(observation)
        yield sampling.Trajectory(
            address,
            sample,
            tokens=np.array(tokens, np.int32),
            mask=np.array(mask, bool),
            logprobs={},
            turns=tuple(spans),
            reason=reason,
        )


def played(task, position, scripts, question=QUESTION, limit=99, runner=None, ended=True):
    """The group of a policy that writes these texts, a list for each trajectory."""
    runner = runner or InProcessEnvironments(task)
    play = Play(task, task.tokenizer, runner, 3, len(scripts))
    prompt = play.open(question, position, limit=limit)
    found = [] if prompt is None else list(sampled(play, position, scripts, ended))
    fields = play.fields(question, position, found)
    return rollouts.Group(group_id="g", prompt_tokens=prompt, **fields)


def test_a_group_of_trajectories_of_different_lengths():
    task = tasks.build(CALCULATOR)
    right, wrong, cut = ["37+58=", "95*19=", "1805"], ["1805="], ["7", "8"]
    made = played(task, 5, [right, wrong, cut])
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
    made = played(task, 0, [["1+1=", "5"]], ended=False)
    assert made.texts == ["1+1=2>5"] and made.turns(0) == [(0, 4), (6, 7)]


def test_components_are_those_of_the_last_turn():
    task = tasks.build(CALCULATOR)

    class Scored(type(task.environment())):
        def step(self, action):
            step = super().step(action)
            parts = {"right": step.reward, "short": None} if step.done else None
            return step._replace(components=parts)

    task.environment = lambda: Scored(None)
    made = played(task, 0, [["37+58=", "95*19=", "1805"], ["1"], ["1+1="]])
    np.testing.assert_array_equal(made.components["right"], [1.0, 0.0, np.nan])
    assert np.isnan(made.components["short"]).all() and made.rewards.tolist() == [1.0, 0.0, 0.0]


def test_a_demonstration_is_the_trajectory_of_its_turns():
    task = tasks.build(CALCULATOR, flaw=0.5)
    play = Play(task, task.tokenizer, InProcessEnvironments(task), 3, 1)
    for position in range(20):
        question = task.question(position)
        turns = task.demonstration(question, environment_seed(3, position, 0))
        fields = play.demonstration(question, position, turns)
        again = played(task, position, [turns], question)
        assert rollouts.Group(group_id="g", **fields) == again
        assert (again.rewards[0] == 1) == (len(turns) == 3)


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
    task = Counting()
    question = Question("q", "1", "1")
    runner = InProcessEnvironments(task)
    for _ in range(2):
        play = Play(task, task.tokenizer, runner, 3, 1)
        assert play.demonstration(question, 0, ["1", "2"])["texts"] == ["1$1>2$"]
    failed = played(task, 0, [["9", "1"]], question, runner=runner)
    assert failed.finish_reasons == ["failed"]
    assert played(task, 0, [["1", "2"]], question, runner=runner).texts == ["1$1>2$"]


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
    made = played(task, 0, [["r"] * 4, ["l"] * 4], question, ended=False)
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
    made = played(task, 0, [["good"], ["over"]], Question("q", "!", kind), limit)
    assert made.finish_reasons == ["failed"] * 2 and np.isnan(made.rewards).all()
    assert all(reason in text for text in made.extra["verify_reasons"])
    assert made.lengths.any() == (kind == "step")
