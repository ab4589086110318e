"""Names become tasks, and wrong ones become sentences."""

import sys

import pytest

import grre_jax
from grre_jax import tasks
from grre_jax.errors import UsageError
from grre_jax.tasks.task import reward_name

from ..conftest import CHAT_ARITHMETIC

COIN = """
from dataclasses import dataclass
from grre_jax.tasks import Question, Verdict

@dataclass
class Coin:
    sides: int
    name: str = "coin"
    def question(self, position): return Question(f"coin/{position}", "Heads or tails?", "heads")
    def evaluation(self, count): return [Question("coin/held-out", "Tails or heads?", "heads")][:count]
    def verify(self, question, completion): return Verdict(float(question.answer in completion.lower()))

def build(seed=0, sides=2): return Coin(sides)
def seedless(): return Coin(2)
def anything(**options): return Coin(options["sides"] + options["seed"])
def nothing(): return object()
"""


@pytest.fixture
def coin(tmp_path):
    path = tmp_path / "coin_task.py"
    path.write_text(COIN)
    return path


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("arithmetc", {}, "'arithmetic'.*'arithmetc'"),
        ("arithmetic", {"anwsers": "full"}, "'anwsers'.* answers"),
        ("arithmetic", {"flaw": 1.1}, "^flaw: "),
        (CHAT_ARITHMETIC, {"digits": 3, "operands": 3}, "^operands: "),
        (CHAT_ARITHMETIC, {"template": "What is it?"}, "^template: .*{expression}"),
    ],
)
def test_wrong_names_and_options(name, options, named):
    with pytest.raises(UsageError, match=named):
        tasks.build(name, **options)


def test_a_task_of_ones_own_from_a_file(coin):
    assert tasks.build(f"{coin}:build", seed=3, sides=6).sides == 6
    assert tasks.build(f"{coin}:seedless").sides == 2
    assert tasks.build(f"{coin}:anything", seed=3, sides=2).sides == 5


def test_a_task_of_ones_own_from_a_module_in_this_folder(coin, monkeypatch):
    monkeypatch.chdir(coin.parent)
    searched = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", list(searched))
    assert tasks.build("coin_task:build").sides == 2
    assert sys.path == searched
    del sys.modules["coin_task"]


@pytest.mark.parametrize(
    ("reference", "options", "named"),
    [
        ("{coin}:biuld", {}, "'biuld'"),
        ("{coin}:build", {"side": 3}, "'side'.* sides"),
        ("{coin}:nothing", {}, "name, question, evaluation, verify"),
        ("{coin.parent}/broken.py:build", {}, "line 1"),
        ("no_such_package.tasks:build", {}, "'no_such_package'"),
    ],
)
def test_wrong_hooks(coin, reference, options, named):
    (coin.parent / "broken.py").write_text("def build(:\n")
    with pytest.raises(UsageError, match=named):
        tasks.build(reference.format(coin=coin), **options)


class Own:
    name, reward_version = "own", "7"


def test_rewards_have_a_function_and_a_version():
    assert reward_name(Own()) == f"{Own.__module__}:Own.verify 7"
    name = reward_name(tasks.build("gsm8k"))
    assert name == f"grre_jax.tasks.gsm8k:GSM8K.verify {grre_jax.__version__}"
