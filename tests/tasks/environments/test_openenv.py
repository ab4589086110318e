"""Environments behind servers of OpenEnv, which run in a process of their own."""

import importlib.util
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grre_jax import tasks
from grre_jax.domains import ConfigError
from grre_jax.errors import UsageError
from grre_jax.tasks.environments.environment import fingerprint
from grre_jax.tasks.environments.openenv import OpenEnv
from grre_jax.tasks.environments.runner import InProcessEnvironments, Trace, make_runner
from grre_jax.tasks.judging import Failure
from grre_jax.tasks.pool import TaskSpec

from .playing import play, wait_for_server

pytest.importorskip("openenv", reason="extra openenv")
PROGRAM = Path(__file__).with_name("openenv_server.py")
# Of the program.
SESSIONS = 4
SLOW = 99
BROKEN = 98


class Server:
    """The servers of the game, the tools and the echo, which can be killed and started again."""

    def __init__(self, folder):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        self.ports = [listening.getsockname()[1] for listening in sockets]
        self.game, self.tools, self.echo = (f"http://127.0.0.1:{port}" for port in self.ports)
        for listening in sockets:
            listening.close()
        self.folder = folder
        self.start()

    def start(self):
        arguments = [*map(str, self.ports), str(self.folder)]
        self.process = subprocess.Popen([sys.executable, PROGRAM, *arguments])
        for url in (self.game, self.tools, self.echo):
            wait_for_server(url, self.process)

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openenv")
    command = [sys.executable, "-m", "openenv.cli", "init", "echo_world", "--output-dir", folder]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    server = Server(folder / "echo_world")
    yield server
    server.kill()


def game(server, **options):
    return tasks.build("openenv", url=f"{server.game}/", observation="text", **options)


def test_a_game_is_played_to_its_end(server):
    task = game(server, template="A number! {observation}")
    opening, replies = play(InProcessEnvironments(task), task.question(0), map(str, range(-1, 10)))
    assert opening.messages == [{"role": "user", "content": "A number! guess"}]
    assert {reply.observation for reply in replies[:-1]} == {"more"}
    assert [reply.reward for reply in replies] == [0.0] * (len(replies) - 1) + [1.0]
    assert replies[-1].observation == "right" and replies[-1].done
    assert task.version == f"Game 1.0.0 {server.game}" == task.reward_version
    assert task.training_source != task.evaluation_source


def test_questions_and_seeds_decide_the_game(server):
    task = game(server, arguments={"most": 1000})
    runner = InProcessEnvironments(task)

    def first(question, seed, turn):
        return play(runner, question, [turn], seed)[1][0].observation

    turns = [str(number) for number in range(0, 1000, 100)]
    trained = task.question(0)
    held_out = task.evaluation(1)[0]
    told = [[first(asked, 1, turn) for turn in turns] for asked in (trained, trained, held_out)]
    assert told[0] == told[1]
    others = [[first(task.question(n), 1, turn) for turn in turns] for n in range(1, 5)]
    assert any(other != told[0] for other in others)


def test_malformed_turns_are_answered_and_the_game_goes_on(server):
    task = game(server)
    turns = ["x", "[" * 10_000, "[1]", "1.5", "-1"]
    _, replies = play(InProcessEnvironments(task), task.question(0), turns)
    assert [reply.done for reply in replies] == [False] * 5
    assert "'x'" in replies[0].observation
    assert all("VALIDATION_ERROR" in reply.observation for reply in replies[2:4])
    assert replies[4].observation == "more"


def test_an_observation_is_shown_as_json_without_a_field(server):
    task = tasks.build("openenv", url=server.game)
    opening, (reply,) = play(InProcessEnvironments(task), task.question(0), ["-1"])
    assert opening.messages[0]["content"] == '{"text": "guess", "guesses": 0}'
    assert reply.observation == '{"text": "more", "guesses": 1}'


def test_tools_are_declared_and_called(server):
    task = tasks.build("openenv", url=server.tools, template="Double 21.{observation}")
    calls = [
        '<tool_call>{"name": "double", "arguments": {"number": 21}}</tool_call>',
        '<tool_call>{"name": "halve", "arguments": {"number": 21}}</tool_call>',
    ]
    opening, replies = play(InProcessEnvironments(task), task.question(0), [*calls, "42"])
    (tool,) = opening.tools
    assert tool["function"]["name"] == "double"
    assert tool["function"]["parameters"]["required"] == ["number"]
    assert replies[0].observation == "42" and replies[0].called
    assert "halve" in replies[1].observation
    assert replies[2].done and replies[2].reward == 0.0


def test_the_package_s_own_example_is_played(server):
    task = tasks.build("openenv", url=server.echo, observation="echoed_message")
    opening, replies = play(InProcessEnvironments(task), task.question(0), ["hello", "a" * 20])
    assert "ready" in opening.messages[0]["content"]
    assert [reply.observation for reply in replies] == ["hello", "a" * 20]
    assert [reply.reward for reply in replies] == [0.5, 1.0]


def test_errors_and_silence_of_the_server_are_failures(server):
    task = game(server, timeout=1.0)
    runner = InProcessEnvironments(task)
    _, (broken,) = play(runner, task.question(0), [str(BROKEN)])
    _, (slow,) = play(runner, task.question(0), [str(SLOW)])
    assert broken.kind == "error" and slow.kind == "timeout"


def test_a_world_that_ignores_its_seed_is_a_failure(server):
    task = game(server, arguments={"moody": True})
    runner = InProcessEnvironments(task)
    question = task.question(0)
    opening = runner.open(question, 7)
    trace = Trace((0, 0, 0), question, 7, fingerprint(opening.messages))
    assert runner.step(trace, [], "1").result().kind == "invalid"


def test_sessions_are_begun_when_the_server_has_room(server):
    task = game(server)
    runner = InProcessEnvironments(task)
    question = task.question(0)
    traces = [Trace((number, 0, 0), question, 1) for number in range(SESSIONS)]
    for trace in traces:
        assert runner.step(trace, [], "-1").result().observation == "more"
    timer = threading.Timer(1.0, runner.end, [traces[0]])
    waiting = make_runner(task, spec(server), processes=1, timeout=20.0)
    timer.start()
    assert waiting.step(Trace((9, 0, 0), question, 1), [], "-1").result().observation == "more"
    timer.join()
    full = InProcessEnvironments(game(server, timeout=0.5)).open(question, 1)
    assert full.kind == "error" and "CAPACITY" in full.reason
    for trace in traces[1:]:
        runner.end(trace)
    waiting.close()


def spec(server):
    return TaskSpec("openenv", 0, {"url": server.game, "observation": "text"})


def test_a_server_that_dies_twice_loses_no_trajectory_without_a_reason(server):
    """Its sessions have failed, the next begin when it serves again; a session that it ended is
    not stepped on in a new one.
    """
    task = game(server)
    runner = make_runner(task, spec(server), processes=2, timeout=60.0)
    outcomes = {}
    for number in range(100):
        question = task.question(number // 4)
        trace = Trace((number, 0, 0), question, 7)
        replies = [runner.step(trace, [], "-1").result()]
        if number in (30, 60):
            server.kill()
            replies.append(runner.step(trace, [("-1", "more")], "-2").result())
            server.start()
        elif number in (31, 61):  # begun before, in the other process
            pass
        if not isinstance(replies[-1], Failure):
            replies.append(runner.step(trace, [("-1", "more")], "-2").result())
            runner.end(trace)
        outcomes[number] = replies[-1]
    failed = {number for number, outcome in outcomes.items() if isinstance(outcome, Failure)}
    assert failed == {30, 60}
    assert all(outcomes[number].reason for number in failed)
    assert {outcomes[n].observation for n in outcomes if n not in failed} == {"more"}
    runner.close()


def test_memory_and_threads_stay_flat(server):
    task = game(server)
    runner = InProcessEnvironments(task)

    def threads_and_files():
        return threading.active_count() + len(os.listdir("/proc/self/fd"))

    play(runner, task.question(0), ["-1"], seed=0)
    before = threads_and_files()
    for number in range(1, 60):
        play(runner, task.question(number), ["-1"], seed=number)
    assert threads_and_files() < before + 20  # sessions that stayed would add more


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"url": ""}, "url"),
        ({"url": "localhost:8000"}, "url"),
        ({"url": "http://127.0.0.1:1", "timeout": 0.0}, "timeout"),
        ({"url": "http://127.0.0.1:1", "most_environments": -1}, "most_environments"),
        ({"url": "http://127.0.0.1:1", "template": "Go!"}, "template"),
    ],
)
def test_options_out_of_their_domain_are_refused(options, field):
    with pytest.raises(ConfigError) as error:
        OpenEnv(**options)
    assert error.value.field == field


def test_fields_that_the_server_lacks_are_refused(server):
    task = game(server, action="guess")
    with pytest.raises(ConfigError) as error:
        _ = task.action_fields
    assert error.value.field == "action"
    unknown = tasks.build("openenv", url=server.game, observation="words")
    opening = InProcessEnvironments(unknown).open(unknown.question(0), 1)
    assert opening.kind == "error" and "words" in opening.reason


def test_the_package_is_required(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="grre-jax.openenv"):
        OpenEnv(url="http://127.0.0.1:1")


def test_an_address_without_a_server_is_refused_when_its_name_is_needed():
    with pytest.raises(UsageError, match="127.0.0.1:1/metadata"):
        _ = tasks.build("openenv", url="http://127.0.0.1:1").version
