"""The examples run, change the policy, and use public names alone."""

import ast
import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

import grre_jax
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.environments.environment import Trace
from grre_jax.tasks.pool import make_judge

from ..generation.conftest import chat_model  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_reports")

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SHORT = "--steps 2 --warm-start 1 --prompts 4 --group-size 2 --questions 4"
FLAGS = {
    "grpo": f"{SHORT} --epochs 1",
    "clipped_reinforce": f"{SHORT} --sync-interval 2",
    "offline": "--steps 2 --groups 8 --prompts-per-step 4 --questions 4",
    "own_reward": "--steps 1 --prompts 2",
}
TASKS = ("calculator", "chat_arithmetic", "guess_number", "http_environment", "textarena")


@pytest.fixture
def run(monkeypatch, capsys):
    """`run(name, *flags)`: variables of an example that has run, and its output."""

    def run_example(name, *flags):
        (path,) = (path for path in EXAMPLES if path.stem == name)
        monkeypatch.setattr(sys, "argv", [str(path), *FLAGS[name].split(), *flags])
        return runpy.run_path(str(path)), capsys.readouterr().out

    return run_example


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES} == {*FLAGS, *TASKS}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "clipped_reinforce"])
def test_the_policy_of_an_example_is_updated(run, name):
    found, output = run(name)
    assert re.search(r"accuracy before: [\d.]+%[\s\S]*accuracy after: [\d.]+%", output)
    before, after = jax.tree.leaves(nnx.state(found["model"])), jax.tree.leaves(found["params"])
    assert all(np.isfinite(leaf).all() for leaf in after)
    assert any((a != b).any() for a, b in zip(before, after, strict=True))


@pytest.mark.slow
def test_a_reward_of_ones_own(run, chat_model, tmp_path):  # noqa: F811
    found, output = run(
        "own_reward", "--model", str(chat_model), "--run-dir", str(tmp_path / "run")
    )
    assert found["run"].folder == tmp_path / "run" and found["run"].accuracy is not None
    assert re.search(r"accuracy [\d.]+ before, [\d.]+ after", output)


@pytest.mark.slow
def test_stored_completions_are_trained_on(run):
    found, output = run("offline", "--algorithm", "red_weight")
    assert "accuracy after" in output and len(found["reader"]) == 8


def test_an_environment_is_a_process_of_its_own():
    (path,) = (path for path in EXAMPLES if path.stem == "http_environment")
    server = subprocess.Popen(
        [sys.executable, str(path), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    options = {"address": f"127.0.0.1:{int(server.stdout.readline())}"}
    config = TaskConfig(f"{path}:build", options, verify_processes=2, verify_timeout=60.0)
    task = config.build(0)
    runner = make_judge(task, config, 0)
    try:
        for number in range(4):
            trace, before = Trace((number, 0, 0), task.question(number), 7), []
            start = pile = int(runner.open(trace.question, 7).messages[0]["content"])
            while pile:
                action = str(pile % 4 or 1)  # leaves a multiple of four, which is lost
                reply = runner.step(trace, before, action).result()
                before.append((action, reply.observation))
                left = int(reply.observation)
                assert reply.done == (left == 0) and pile - 6 <= left < pile
                pile = left
            assert start in range(5, 10) and (reply.reward == 1 or start % 4 == 0)
        late = Trace((9, 0, 0), task.question(9), 7)
        assert not runner.step(late, [], "1").result().done
        server.kill()
        server.wait()
        assert runner.step(late, [], "1").result().kind == "error"
    finally:
        server.kill()
        runner.close()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_use_public_names_alone(path):
    tree = ast.parse(path.read_text())
    own = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = [node for node in own if node.module.startswith("grre_jax")]
    whole = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    names = {alias.name: alias.asname for node in whole for alias in node.names}
    rooms = {names["grre_jax"]: grre_jax} if "grre_jax" in names else {}
    tasks_rooms = ("grre_jax.tasks.environments", "grre_jax.tasks.verifiers.final_number")
    own = [node for node in own if node.module not in tasks_rooms]  # as own tasks import them
    outside = path.stem == "textarena"
    assert [node.module for node in own] == ([] if rooms or outside else ["grre_jax"])
    rooms |= {
        alias.name: importlib.import_module(f"grre_jax.{alias.name}")
        for node in own
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in rooms:
            room = rooms[node.value.id]
            assert node.attr in getattr(room, "__all__", dir(room)), (node.value.id, node.attr)
    assert len(path.read_text().splitlines()) <= 150
