"""Environments behind servers of OpenEnv, which run in a process of their own."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grre_jax import tasks
from grre_jax.domains import ConfigError
from grre_jax.errors import UsageError
from grre_jax.tasks.environments.runner import InProcessEnvironments, Trace
from grre_jax.tasks.judging import Failure

from .playing import play, wait_for_server

pytest.importorskip("openenv", reason="extra openenv")
PROGRAM = Path(__file__).with_name("openenv_server.py")
# Of the program.
SESSIONS = 4
SLOW = 99
BROKEN = 98


class Server:
    """The servers of the game and the tools, which can be killed and started again."""

    def __init__(self):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.ports = [str(listening.getsockname()[1]) for listening in sockets]
        self.game, self.tools = (f"http://127.0.0.1:{port}" for port in self.ports)
        for listening in sockets:
            listening.close()
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, PROGRAM, *self.ports])
        for url in (self.game, self.tools):
            wait_for_server(url, self.process)

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.kill()


def game(server, **options):
    return tasks.build("openenv", url=f"{server.game}/", observation="text", **options)


def test_a_game_is_played_to_its_end(server):
    task = game(server, template="A number! {observation}", arguments={"most": 1})
    opening, replies = play(InProcessEnvironments(task), task.question(0), ["-1", "0", "1"])
    assert opening.messages == [{"role": "user", "content": "A number! guess"}]
    said = [(reply.observation, reply.reward, reply.done) for reply in replies]
    assert said == [("more", 0.0, False), ("right", 1.0, True)]
    assert task.version == f"Game 1.0.0 {server.game}" == task.reward_version


def test_malformed_turns_are_answered_and_the_game_goes_on(server):
    task = tasks.build("openenv", url=server.game)
    turns = ["x", "[" * 10_000, "[1]", "1.5", "-1"]
    _, replies = play(InProcessEnvironments(task), task.question(0), turns)
    assert [reply.done for reply in replies] == [False] * 5
    assert "'x'" in replies[0].observation
    assert all("VALIDATION_ERROR" in reply.observation for reply in replies[2:4])
    assert replies[4].observation == '{"text": "more", "guesses": 1}'  # without a field


def test_tools_are_declared_and_called(server):
    task = tasks.build("openenv", url=server.tools, template="Double 21.{observation}")
    call = '<tool_call>{"name": "NAME", "arguments": {"number": 21}}</tool_call>'
    turns = [call.replace("NAME", name) for name in ("double", "halve")] + ["42"]
    opening, replies = play(InProcessEnvironments(task), task.question(0), turns)
    function = opening.tools[0]["function"]
    assert (function["name"], function["parameters"]["required"]) == ("double", ["number"])
    assert replies[0].observation == "42" and replies[0].called
    assert "halve" in replies[1].observation
    assert replies[2].done and replies[2].reward == 0.0


def test_errors_and_silence_of_the_server_are_failures(server):
    task = game(server, timeout=1.0)
    runner = InProcessEnvironments(task)
    _, (broken,) = play(runner, task.question(0), [str(BROKEN)])
    _, (slow,) = play(runner, task.question(0), [str(SLOW)])
    assert broken.kind == "error" and slow.kind == "timeout"


def test_sessions_are_begun_when_the_server_has_room(server):
    task = game(server)
    runner = InProcessEnvironments(task)
    question = task.question(0)
    traces = [Trace((number, 0, 0), question, 1) for number in range(SESSIONS)]
    for trace in traces:
        assert runner.step(trace, [], "-1").result().observation == "more"
    timer = threading.Timer(1.0, runner.end, [traces[0]])
    timer.start()
    waiting = Trace((9, 0, 0), question, 1)
    assert runner.step(waiting, [], "-1").result().observation == "more"
    timer.join()
    full = InProcessEnvironments(game(server, timeout=0.5)).open(question, 1)
    assert full.kind == "error" and "CAPACITY" in full.reason
    for trace in (*traces[1:], waiting):
        runner.end(trace)


def test_a_server_that_dies_costs_the_trajectories_under_way(server):
    """The next begin when it serves again; a session that it ended is not stepped on in a new
    one.
    """
    task = game(server, timeout=60.0)
    runner = InProcessEnvironments(task)
    outcomes = []
    for number in range(6):
        trace = Trace((number, 0, 0), task.question(number), 7)
        assert runner.step(trace, [], "-1").result().observation == "more"
        if number == 2:
            server.kill()
        outcomes.append(runner.step(trace, [("-1", "more")], "-2").result())
        if number == 2:
            server.start()
        runner.end(trace)
    assert isinstance(outcomes.pop(2), Failure)
    assert [outcome.observation for outcome in outcomes] == ["more"] * 5


def test_fields_that_the_server_lacks_and_absent_servers_are_refused(server):
    with pytest.raises(ConfigError) as error:
        _ = game(server, action="guess").action_fields
    assert error.value.field == "action"
    unknown = tasks.build("openenv", url=server.game, observation="words")
    opening = InProcessEnvironments(unknown).open(unknown.question(0), 1)
    assert opening.kind == "error" and "words" in opening.reason
    with pytest.raises(UsageError, match="127.0.0.1:1/metadata"):
        _ = tasks.build("openenv", url="http://127.0.0.1:1").version
