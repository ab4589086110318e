"""The programs of docs/environments.md run as they stand."""

import asyncio
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grre_jax import tasks

from .playing import wait_for_server

PAGE = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()


def program(heading):
    """Returns the first Python program below a heading of the page."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


@pytest.mark.parametrize(
    ("heading", "package", "shown"),
    [("Five ways in", "gymnasium", "\n95\n"), ("TextArena", "textarena", "between 1 and 8")],
)
def test_a_trajectory_is_played_by_hand(capsys, heading, package, shown):
    pytest.importorskip(package, reason=f"extra {package}")
    exec(program(heading), {})
    assert shown in capsys.readouterr().out


def test_the_gymnasium_environment_is_made(tmp_path):
    (tmp_path / "lake.py").write_text(program("Gymnasium"))
    task = tasks.build("gymnasium", env=f"{tmp_path / 'lake.py'}:make")
    world = task.environment()
    assert world.reset(task.question(0), 0)[0]["content"] == "0"
    assert world.step("r").observation == "1"


def test_the_server_of_openenv_is_played(tmp_path):
    pytest.importorskip("openenv", reason="extra openenv")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    (tmp_path / "server.py").write_text(program("OpenEnv").replace("port=8000", f"port={port}"))
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, tmp_path / "server.py"]) as server:
        try:
            wait_for_server(url, server)
            task = tasks.build("openenv", url=url, observation="text", most_environments=32)
            world = task.environment()
            assert "0 to 9" in world.reset(task.question(0), 1)[0]["content"]
            replies = [world.step(str(number)) for number in range(10)]
            assert sum(reply.reward for reply in replies) == 1.0
            world.close()
        finally:
            server.kill()


def test_the_environment_of_verifiers_judges(tmp_path):
    pytest.importorskip("verifiers", reason="extra verifiers")
    (tmp_path / "sums.py").write_text(program("verifiers"))
    env = f"{tmp_path / 'sums.py'}:load_environment"
    task = tasks.build("verifiers", env=env, arguments={"count": 50})
    question = task.question(0)
    verdict = asyncio.run(task.verify(question, question.answer))
    assert verdict.reward == 1.0 and verdict.components["right"] == 1.0
    assert len(task.evaluation(50)) == 5
