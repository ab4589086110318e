"""Names become tasks, and wrong ones become sentences."""

import math
import subprocess
import sys

import pytest

from grre_jax import tasks
from grre_jax.errors import UsageError
from grre_jax.tasks.environments import is_environment

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
def needy(edge): return Coin(edge)
def nothing(): return object()
LIMIT = 3
"""


@pytest.fixture
def coin(tmp_path):
    path = tmp_path / "coin_task.py"
    path.write_text(COIN)
    return path


NEEDS = {
    "math": "math_verify",
    "guru_math": "math_verify",
    "reasoning_gym": "reasoning_gym",
}  # packages of extras
# Which need an environment or a file that must be named.
WORLDS = ("gymnasium", "textarena", "questions")


@pytest.mark.parametrize("name", [name for name in tasks.names() if name not in WORLDS])
def test_every_name_builds(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    task = tasks.build(name, seed=1)
    assert task.name == name and isinstance(task, tasks.Task) != is_environment(task)
    assert task.training_source != task.evaluation_source


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arithmetc", {}, r"no task 'arithmetc' \(did you mean 'arithmetic'"),
        ("zzz", {}, f"no task 'zzz': choose one of {', '.join(tasks.names())}"),
        ("arithmetic", {"anwsers": "full"}, r"'anwsers' \(did you mean 'answers'\?\)"),
        ("arithmetic", {"answers": "ful"}, "^answers: .*full"),
        ("arithmetic", {"seed": -1}, "^seed: "),
        *(("arithmetic", {"flaw": value}, "^flaw: ") for value in (1.1, math.nan)),
        ("chat_arithmetic", {"digits": 3, "operands": 3}, "^operands: "),
        ("chat_arithmetic", {"below": 11}, "^below: "),
        ("chat_arithmetic", {"template": "What is it?"}, "^template: .*{expression}"),
        ("gsm8k", {"template": "Solve it."}, "^template: .*{question}"),
        ("gsm8k", {"test_path": "a"}, "^path: "),
    ],
)
def test_wrong_names_and_options(name, options, message):
    with pytest.raises(UsageError, match=message):
        tasks.build(name, **options)


def test_a_task_of_ones_own_from_a_file(coin):
    task = tasks.build(f"{coin}:build", seed=3, sides=6)
    assert task.sides == 6
    assert task.verify(task.question(0), "Heads!").reward == 1
    assert tasks.build(f"{coin}:seedless").sides == 2
    assert tasks.build(f"{coin}:anything", seed=3, sides=2).sides == 5


def test_a_task_of_ones_own_from_a_module_in_this_folder(coin, monkeypatch):
    monkeypatch.chdir(coin.parent)
    monkeypatch.setattr(
        sys, "path", [entry for entry in sys.path if entry not in ("", str(coin.parent))]
    )
    searched = list(sys.path)
    assert tasks.build("coin_task:build").sides == 2
    assert sys.path == searched
    sys.modules.pop("coin_task")


@pytest.mark.parametrize(
    ("reference", "options", "message"),
    [
        ("{coin}:biuld", {}, r"no function 'biuld' \(did you mean 'build'"),
        ("{coin}:LIMIT", {}, "no function 'LIMIT'"),
        ("{coin}:build", {"side": 3}, r"'side' \(did you mean 'sides'"),
        ("{coin}:needy", {}, "edge"),
        ("{coin}:nothing", {}, "name, question, evaluation, verify"),
        ("{coin}.py:build", {}, "No such file"),
        ("no_such_package.tasks:build", {}, "No module named 'no_such_package'"),
        ("json:", {}, "does not name a function"),
    ],
)
def test_wrong_hooks(coin, reference, options, message):
    with pytest.raises(UsageError, match=message):
        tasks.build(reference.format(coin=coin), **options)


def test_a_file_that_cannot_be_loaded(tmp_path):
    (tmp_path / "broken.py").write_text("def build(:\n")
    with pytest.raises(UsageError, match="line 1"):
        tasks.build(f"{tmp_path / 'broken.py'}:build")


def test_importing_tasks_is_light():
    heavy = ("jax", "transformers", "tokenizers", "tensorflow", "tensorflow_datasets", "torch")
    code = (
        "import sys; import grre_jax.tasks as t; t.build('arithmetic').question(0); print([m for m"
        f" in {heavy} if m in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == "[]"
