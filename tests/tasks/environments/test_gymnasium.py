"""Environments of Gymnasium's interface, by hand, of the package, and games of TextArena."""

import random
import sys
from pathlib import Path

import gymnasium
import pytest

from grre_jax import tasks
from grre_jax.errors import UsageError
from grre_jax.tasks.environments.environment import InProcessEnvironments, Reply, Trace

from . import playing

WORLD = """
import random

class Corridor:
    metadata, render_mode, spec, action_space, observation_space = {}, None, None, None, None
    unwrapped = property(lambda self: self)
    def __init__(self, rooms=5, **_): self.rooms = rooms
    def reset(self, *, seed=None, options=None):
        self.place, self.steps = random.Random(seed).randrange(1, self.rooms), 0
        return f"room {self.place}", {}
    def step(self, action):
        self.place, self.steps = self.place + {"l": -1, "r": 1}[action], self.steps + 1
        info = {"steps": self.steps, "wall": False, "odd": object()}
        return f"room {self.place}", float(not self.place), not self.place, self.steps > 3, info
    def close(self): pass

class Numbers(Corridor):
    def reset(self, *, seed=None, options=None): return 3, {}
"""


@pytest.fixture
def world(tmp_path):
    path = tmp_path / "world.py"
    path.write_text(WORLD)
    return f"{path}:Corridor"


def play(task, question, actions, seed=7):
    """The opening's text, and the answers to the actions up to the last."""
    opening, replies = playing.play(InProcessEnvironments(task), question, actions, seed)
    return opening.messages[0]["content"], replies


def test_a_world_is_stepped_until_it_ends_or_is_cut(world):
    task = tasks.build("gymnasium", env=world, template="Go!\n{observation}")
    question = task.question(0)
    said, (*on, last) = play(task, question, ["l"] * 9)
    start = int(said.removeprefix("Go!\nroom "))
    assert [reply.observation for reply in on] == [f"room {n}" for n in range(start - 1, 0, -1)]
    assert last == Reply("room 0", 1.0, True, False) and not any(r.done for r in on)
    cut = Reply(f"room {start + 4}", 0.0, True, False)
    assert play(task, question, ["r"] * 9)[1][-1] == cut
    assert task.tokenizer.decode(task.tokenizer.encode_prompt(said)) == said


def test_worlds_differ_by_question_and_seed(world):
    task = tasks.build("gymnasium", env=world, arguments={"rooms": 10**9})
    questions = [task.question(0), task.question(1), *task.evaluation(2)]
    begun = [play(task, asked, [], seed)[0] for asked in questions for seed in (1, 2)]
    assert len(set(begun)) == 8 and play(task, questions[0], [], 1)[0] == begun[0]


def test_what_is_no_world_of_text_is_refused(world, monkeypatch):
    with pytest.raises(UsageError, match="^env: .*TypeError"):
        tasks.build("gymnasium", env=world.replace("Corridor", "Numbers"))
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UsageError, match="^env: .*gymnasium"):
        tasks.build("gymnasium", env="Maze-v0")


def test_registered_worlds_are_found_by_name(world, tmp_path, monkeypatch):
    (tmp_path / "corridor_worlds.py").write_text(
        "import gymnasium, world\n"
        "class Corridor(world.Corridor, gymnasium.Env):\n"
        "    action_space = gymnasium.spaces.Text(9)\n"
        "    observation_space = gymnasium.spaces.Text(9, charset='room 0123456789')\n"
        "gymnasium.register('Corridor-v0', Corridor, max_episode_steps=2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    task = tasks.build("gymnasium", env="corridor_worlds:Corridor-v0", arguments={"rooms": 9})
    assert len(play(task, task.question(0), ["r"] * 9)[1]) == 2
    with pytest.raises(UsageError, match="NameNotFound"):
        tasks.build("gymnasium", env="Corridors-v0")
    del gymnasium.registry["Corridor-v0"]


def arena(game, **arguments):
    pytest.importorskip("textarena", reason="extra textarena")
    file = Path(__file__).parents[3] / "examples" / "textarena.py"
    return tasks.build("gymnasium", env=f"{file}:make", arguments={"game": game, **arguments})


def test_a_game_of_textarena_is_won():
    task = arena("GuessTheNumber-v0", max_number=8)
    _, replies = play(task, task.question(0), [f"I say [{n}]." for n in range(8, 0, -1)], 3)
    *on, last = replies
    assert {(r.observation, r.reward) for r in on} == {("The target number is lower.", 0.0)}
    assert last.done and last.reward == 1.0


def test_games_of_textarena_do_not_draw_from_each_other():
    task = arena("2048-v0")
    question, moves = task.question(0), [f"[{way}]" for way in ("left", "up", "right", "down") * 3]
    _, alone = play(task, question, moves)
    runner = InProcessEnvironments(task)
    before = []
    for move, reply in zip(moves, alone, strict=True):
        random.seed(move)
        state = random.getstate()
        for number in range(2):
            trace = Trace((number, 0, 0), question, 7)
            assert runner.step(trace, before, move).result() == reply
        assert random.getstate() == state
        before = [*before, (move, reply.observation)]
