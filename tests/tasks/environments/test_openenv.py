"""Environments behind servers of OpenEnv, which run in a process of their own: the game of
docs/environments.md, and a set of tools.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from grre_jax import tasks
from grre_jax.errors import UsageError
from grre_jax.tasks.environments.environment import InProcessEnvironments, Trace
from grre_jax.tasks.judging import Failure

from .playing import play, program

pytest.importorskip("openenv", reason="extra openenv")

# OpenEnv imports what draws its web pages, which no server here has, in seconds.
WITHOUT_PAGES = """
import sys
from unittest.mock import MagicMock
sys.modules["gradio"] = MagicMock()
"""
SERVERS = """
import os, sys, threading, time
from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

class Troubled(Game):
    hidden = 0  # before a reset
    def reset(self, seed=None, most=10, **_):
        answer = super().reset(seed)
        self.hidden %= most
        return answer
    def step(self, action, **_):
        if action.number == 99:
            time.sleep(2)
        if action.number == 98:
            raise ValueError("broken")
        if action.number == 97:
            os._exit(1)
        return super().step(action)

class Tools(MCPEnvironment):
    state = State()
    def __init__(self):
        server = FastMCP("tools")
        @server.tool()
        def double(number: int) -> int:
            "Doubles a number."
            return 2 * number
        super().__init__(server)
    def reset(self, **_):
        return Observation()
    def _step_impl(self, action, **_):
        raise ValueError("not a tool")

def serve(app, port):
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error")

game, tools = sys.argv[1:]
while os.fork():
    os.wait()  # serves again when it has died
played = create_fastapi_app(Troubled, Guess, Answer, max_concurrent_envs=4)
threading.Thread(target=serve, args=(played, game), daemon=True).start()
serve(create_fastapi_app(Tools, CallToolAction, CallToolObservation), tools)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The addresses of the game and the tools, which are served again when the server has died."""
    path = tmp_path_factory.mktemp("openenv") / "servers.py"
    path.write_text(WITHOUT_PAGES + program("OpenEnv").partition("if __name__")[0] + SERVERS)
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [str(listening.getsockname()[1]) for listening in sockets]
    for listening in sockets:
        listening.close()
    process = subprocess.Popen([sys.executable, path, *ports], start_new_session=True)
    game, tools = (f"http://127.0.0.1:{port}" for port in ports)
    sys.modules["gradio"] = MagicMock()
    for url in (game, tools):
        while process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=1).close()
                break
            time.sleep(0.1)
    yield SimpleNamespace(game=game, tools=tools)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def game(server, **options):
    return tasks.build("openenv", url=f"{server.game}/", observation="text", **options)


def test_a_game_is_played_to_its_end(server):
    task = game(server, template="A number! {observation}", arguments={"most": 1})
    opening, replies = play(InProcessEnvironments(task), task.question(0), ["-1", "0", "1"])
    said = "A number! Guess my number, from 0 to 9."
    assert opening.messages == [{"role": "user", "content": said}]
    said = [(reply.observation, reply.reward, reply.done) for reply in replies]
    assert said == [("more", 0.0, False), ("more", 1.0, True)]
    assert task.version == f"Troubled 1.0.0 {server.game}"


def test_malformed_turns_are_answered_and_the_game_goes_on(server):
    task = tasks.build("openenv", url=server.game)
    turns = ["x", "[" * 10_000, "1.5", " -1\n"]
    _, replies = play(InProcessEnvironments(task), task.question(0), turns)
    assert [reply.done for reply in replies] == [False] * 4
    assert all("VALIDATION_ERROR" in reply.observation for reply in replies[:3])
    assert replies[3].observation == '{"text": "more"}'  # without a field


def test_an_action_of_several_fields_is_a_json_object(server):
    task = tasks.build("openenv", url=server.tools)
    call = '{"type": "call_tool", "tool_name": "double", "arguments": {"number": 21}}'
    _, replies = play(InProcessEnvironments(task), task.question(0), ["[", call])
    assert "JSON object" in replies[0].observation and "42" in replies[1].observation


def test_errors_and_silence_of_the_server_are_failures(server):
    task = game(server, timeout=1.0)
    for number, kind in (("98", "error"), ("99", "timeout")):
        _, (failure,) = play(InProcessEnvironments(task), task.question(0), [number])
        assert failure.kind == kind


def test_sessions_are_begun_when_the_server_has_room(server):
    task = game(server)
    runner = InProcessEnvironments(task)
    traces = [Trace((number, 0, 0), task.question(0), 1) for number in range(5)]
    for trace in traces[:4]:
        assert runner.step(trace, [], "-1").result().observation == "more"
    full = InProcessEnvironments(game(server, timeout=0.5)).open(task.question(0), 1)
    assert full.kind == "error" and "CAPACITY" in full.reason
    threading.Timer(1.0, runner.end, traces[:1]).start()
    assert runner.step(traces[4], [], "-1").result().observation == "more"
    for trace in traces[1:]:
        runner.end(trace)


def test_a_server_that_dies_costs_the_trajectories_under_way(server):
    """Also when it serves again: a session that it ended is not stepped on in a new one."""
    task = game(server, timeout=60.0)
    runner = InProcessEnvironments(task)
    first, second = (Trace((number, 0, 0), task.question(number), 7) for number in range(2))
    assert runner.step(first, [], "-1").result().observation == "more"
    assert isinstance(play(runner, task.question(0), ["97"])[1][0], Failure)  # it dies
    assert runner.step(second, [], "-1").result().observation == "more"
    assert isinstance(runner.step(first, [("-1", "more")], "-2").result(), Failure)
    for trace in (first, second):
        runner.end(trace)


def test_fields_that_the_server_lacks_are_refused(server):
    with pytest.raises(UsageError, match="^action: "):
        _ = game(server, action="guess").action_field
