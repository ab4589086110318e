"""Environments behind an OpenEnv server (https://github.com/meta-pytorch/OpenEnv), by its address.

grre train CONFIG --task.name openenv --task.options.url http://127.0.0.1:8000
"""

from __future__ import annotations

import functools
import importlib.util
import json
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from grre_jax.domains import AboveZero, ConfigError, Count, shown
from grre_jax.errors import UsageError
from grre_jax.tasks.environments.environment import (
    MOST_CHARACTERS,
    SeededWorlds,
    Step,
    world_seed,
)
from grre_jax.tasks.judging import Invalid, error_words
from grre_jax.tasks.task import Question


@dataclass(eq=False, repr=False)
class OpenEnv(SeededWorlds):
    """The task; see the module's text.

    Args:
        url: the server's address.
        action: the field of the action that a turn's text fills, which the server converts. Empty
            for the only one; a turn's text is a JSON object if there are several.
        observation: the field of the observation that the policy reads; empty for all, as JSON.
        arguments: of the server's reset, beside the seed.
        timeout: seconds to begin a session, and for each step; less than `task.verify_timeout`.
        most_environments: sessions at once that the server allows; 0 for any number.

    Raises:
        UsageError: an option out of its domain, or no server answers when its name is needed.
    """

    name = "openenv"

    url: str = ""
    action: str = ""
    observation: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    timeout: AboveZero = 5.0
    most_environments: Count = 0

    def __post_init__(self):
        super().__post_init__()
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError("url", "an OpenEnv server's address, http://HOST:PORT", self.url)
        self.url = self.url.rstrip("/")
        if importlib.util.find_spec("openenv") is None:
            raise UsageError("task openenv needs its package: pip install 'grre-jax[openenv]'.")

    @functools.cached_property
    def world(self) -> str:
        """The environment's name, which the server gives."""
        return self._get("metadata")["name"]

    @functools.cached_property
    def version(self) -> str:
        """The environment's name and version, and the server's address."""
        return f"{self.world} {self._get('metadata').get('version') or '?'} {self.url}"

    @functools.cached_property
    def action_field(self) -> str:
        """The field that a turn fills; empty if a turn is the whole action."""
        fields = self._get("schema")["action"].get("properties", {}).keys() - {"metadata"}
        if self.action and self.action not in fields:
            raise ConfigError("action", f"empty or one of {', '.join(fields)}", self.action)
        return self.action or (fields.pop() if len(fields) == 1 else "")

    reward_version = property(lambda self: self.version)

    def environment(self) -> Session:
        """An environment without a session."""
        return Session(self)

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}/{path}", timeout=self.timeout) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"url: expected an OpenEnv server, got {error_words(error)} from {self.url}/{path}."
            ) from error


class Session:
    """The environment of one trajectory, of an `OpenEnv` task."""

    def __init__(self, task: OpenEnv):
        self._task = task
        self._client = _client(task.url, task.timeout)

    def reset(self, question: Question, seed: int) -> list[dict[str, str]]:
        """Begins a session, as soon as the server answers and has room for one."""
        arguments = self._task.arguments | {"seed": world_seed(question, seed)}
        last = time.monotonic() + self._task.timeout
        while True:
            try:
                result = self._client.reset(**arguments)
                break
            except Exception as error:
                busy = isinstance(error, ConnectionError) or "CAPACITY_REACHED" in str(error)
                if not busy or time.monotonic() > last:
                    raise
            self._client.close()
            time.sleep(0.1)
            self._client = _client(self._task.url, self._task.timeout)
        if result.done:
            raise Invalid("reset: expected a trajectory to play, got one that is done")
        return self._task.opening(self._text(result.observation))

    def step(self, action: str) -> Step:
        """Takes a turn; one that the server refuses as malformed is answered by its message."""
        field = self._task.action_field
        try:
            arguments = {field: action} if field else dict(json.loads(action))
        except (TypeError, ValueError, RecursionError):
            return Step(f"expected a JSON object, got {shown(action)}")
        try:
            result = self._client.step(arguments)
        except RuntimeError as error:
            if "VALIDATION_ERROR" not in str(error):
                raise
            return Step(str(error)[:MOST_CHARACTERS])
        return Step(self._text(result.observation), result.reward or 0.0, result.done)

    def close(self) -> None:
        """Ends the session."""
        self._client.close()

    def _text(self, observation: dict[str, Any]) -> str:
        name = self._task.observation
        read = {key: observation[key] for key in observation if key != "metadata"}
        value = read[name] if name else read
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _client(url: str, timeout: float) -> Any:
    """Returns the package's client, which connects at its first request."""
    from openenv.core import GenericEnvClient

    class Client(GenericEnvClient):
        """Connects once: the server's next session would be another trajectory."""

        _began = False

        async def _connect_async(self) -> GenericEnvClient:
            if self._began and (self._ws is None or self._ws.close_code is not None):
                raise ConnectionError(f"{url} ended the session")
            self._began = True
            return await super()._connect_async()

    return Client(url, connect_timeout_s=timeout, message_timeout_s=timeout).sync()
