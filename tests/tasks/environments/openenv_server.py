"""Environments of OpenEnv on ports of 127.0.0.1: a guessing game and a set of tools.

python openenv_server.py GAME_PORT TOOLS_PORT
"""

import random
import sys
import threading
import time

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

SESSIONS = 4
SLOW = 99
BROKEN = 98


class Guess(Action):
    number: int


class Answer(Observation):
    text: str = ""
    guesses: int = 0


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self, seed=None, most=10, **_):
        self.hidden = random.Random(seed).randrange(most)
        self.guesses = 0
        return Answer(text="guess")

    def step(self, action, **_):
        if action.number == SLOW:
            time.sleep(2)
        if action.number == BROKEN:
            raise ValueError("broken")
        self.guesses += 1
        difference = self.hidden - action.number
        text = "right" if not difference else "more" if difference > 0 else "less"
        return Answer(
            text=text, guesses=self.guesses, reward=float(not difference), done=not difference
        )


class Tools(MCPEnvironment):
    state = State()

    def __init__(self):
        server = FastMCP("tools")

        @server.tool()
        def double(number: int) -> int:
            """Doubles a number."""
            return 2 * number

        super().__init__(server)

    def reset(self, **_):
        return Observation()

    def _step_impl(self, action, **_):
        raise ValueError("not a tool")


def server(app, port):
    return uvicorn.Server(uvicorn.Config(app, "127.0.0.1", int(port), log_level="error"))


if __name__ == "__main__":
    game, tools = sys.argv[1:]
    played = create_fastapi_app(Game, Guess, Answer, max_concurrent_envs=SESSIONS)
    called = create_fastapi_app(Tools, CallToolAction, CallToolObservation)
    threading.Thread(target=server(played, game).run, daemon=True).start()
    server(called, tools).run()
