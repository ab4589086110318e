r"""An environment in a process of its own, which may be another program on another machine.

The server plays Nim: of a pile of stones the policy and the server take one to three in turn, and
who takes the last one wins. The task's environment is its client. A request that fails costs its
trajectory alone.

    python examples/http_environment.py --port 8000 &
    grre train configs/agent_guess.py --name nim --task.name examples/http_environment.py:build \
        --task.options.address 127.0.0.1:8000
"""

import argparse
import http.client
import http.server
import json
import random
import uuid

from grre_jax import tasks

# ---- The server


class Nim(http.server.BaseHTTPRequestHandler):
    """Answers POST /reset, /step and /close with JSON."""

    games: dict[str, tuple[str, int]] = {}  # seed and pile of each

    def do_POST(self):
        """Answers a request."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers = {"/reset": self.begin, "/step": self.play, "/close": self.end}
        body = json.dumps(answers[self.path](**asked)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin(self, game, seed):
        """Makes a pile."""
        pile = random.Random(seed).randint(5, 9)
        self.games[game] = seed, pile
        return {"observation": str(pile)}

    def play(self, game, action):
        """Takes the policy's stones and then the server's."""
        seed, pile = self.games[game]
        if action not in ("1", "2", "3") or int(action) > pile:
            return {"observation": "", "reward": 0, "done": True}
        pile -= int(action)
        won = pile == 0
        if not won:
            pile -= random.Random(f"{seed}/{pile}").randint(1, min(3, pile))
        self.games[game] = seed, pile
        return {"observation": str(pile), "reward": int(won), "done": pile == 0}

    def end(self, game):
        """Forgets a game."""
        del self.games[game]
        return {}

    def log_message(self, format, *args):
        """Says nothing."""


# ---- The task


class Games:
    """Games of Nim against a server."""

    name, version, separator = "nim", "1", ""
    tokenizer = tasks.CharTokenizer("0123456789$")

    def __init__(self, address):
        self.address = address

    def question(self, position):
        """A game of the training stream."""
        return tasks.Question(f"nim/train/{position}", "", "")

    def evaluation(self, count):
        """Games that are held out."""
        return [tasks.Question(f"nim/held-out/{number}", "", "") for number in range(count)]

    def environment(self):
        """A game that has not begun."""
        return Game(self.address)


class Game:
    """One game; a process of the run steps several, and waits for each answer."""

    def __init__(self, address):
        self.connection, self.name = http.client.HTTPConnection(address), uuid.uuid4().hex

    def ask(self, path, **fields):
        """The server's answer."""
        self.connection.request("POST", path, json.dumps({"game": self.name} | fields))
        return json.load(self.connection.getresponse())

    def reset(self, question, seed):
        """Begins."""
        said = self.ask("/reset", seed=f"{question.question_id}/{seed}")
        return [{"role": "user", "content": said["observation"]}]

    def step(self, action):
        """Takes stones."""
        said = self.ask("/step", action=action)
        return said["observation"], said["reward"], said["done"], {}

    def close(self):
        """Has the server forget the game."""
        self.ask("/close")
        self.connection.close()


def build(address="127.0.0.1:8000"):
    """Makes the task of a server."""
    return Games(address)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000, help="8000; 0 for any that is free")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Nim)
    print(server.server_port, flush=True)
    server.serve_forever()
