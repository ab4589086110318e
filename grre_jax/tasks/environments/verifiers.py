"""Environments of the package `verifiers` (https://github.com/PrimeIntellect-ai/verifiers).

    grre train CONFIG --task.name verifiers --task.options.env wordle
    grre train CONFIG --task.name verifiers --task.options.env sums.py:load_environment

The package's own loop plays each trajectory. Its client, in place of a model's server, hands the
prompts over and waits for the policy's turns.
"""

import asyncio
import contextlib
import functools
import importlib.metadata
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from grre_jax.domains import Count
from grre_jax.json_files import message_text
from grre_jax.tasks.datasets.questions import joined, plain_messages
from grre_jax.tasks.datasets.stored_questions import Entry, HeldOutQuestions, Record, digest
from grre_jax.tasks.environments.environment import ASCII, END, Step
from grre_jax.tasks.judging import Invalid
from grre_jax.tasks.task import Question, Verdict, factory, making
from grre_jax.tasks.tokenizers.characters import CharTokenizer
from grre_jax.tasks.verifiers.function_calls import Call


@dataclass(eq=False, repr=False)
class Verifiers(HeldOutQuestions):
    """The task; see the module's text. It has `verify` if the environment has one turn and no
    tools, else `environment`.

    Args:
        env: an installed environment, or path/to/file.py:function that returns one.
        arguments: of its `load_environment`, or of the function.
        held_out: questions held out of an environment without a data set to evaluate on.

    Raises:
        UsageError: the environment cannot be loaded, or rewards groups as a whole.
    """

    name = "verifiers"
    separator = "\n"
    tokenizer = CharTokenizer(ASCII, END)

    env: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    held_out: Count | None = None

    def __post_init__(self):
        super().__post_init__()
        with making("env", self.env, self.arguments):
            import verifiers

            if ":" in self.env:
                world = factory(self.env)(**self.arguments)
            else:
                world = verifiers.load_environment(self.env, **self.arguments)
            if world.requires_group_rollouts:
                raise ValueError("its rewards are of whole groups")
        package = self.env.rpartition("/")[2]
        version = "?"  # of an environment that is a file
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            version = importlib.metadata.version(package)
        self.version = f"{package} {version}, verifiers {verifiers.__version__}"
        self._world = world
        self._rows: dict[str, Record] = {}
        self._source = f"verifiers/{package}"
        self.training_source = f"{self._source}/train"
        self.evaluation_source = f"{self._source}/test"
        self.reward_version = self.version
        if isinstance(world, verifiers.SingleTurnEnv) and not world.tool_defs:
            self.verify = self._judged
        else:
            self.environment = functools.partial(Rollout, self.played)

    async def played(self, question: Question, respond: Callable[..., Awaitable[Any]]) -> Any:
        """Returns the package's record of a trajectory whose turns a function gives.

        Raises:
            RuntimeError: the environment ended it with an error.
        """
        from verifiers.clients import Client

        if not self._rows:
            self.all_questions()
        members = dict.fromkeys(Client.__abstractmethods__)  # of requests to a server
        members["get_response"] = staticmethod(respond)
        client = type("Policy", (Client,), members)(None)
        row = self._rows[question.question_id]
        output = await self._world.run_rollout(row, client, "policy", {})
        if output["error"]:
            raise RuntimeError(str(output["error"]))
        return output

    async def _judged(self, question: Question, completion: str) -> Verdict:
        async def respond(**_: Any) -> Any:
            return _response(completion)

        output = await self.played(question, respond)
        return Verdict(output["reward"], output["metrics"])

    def _records(self, split: str) -> Iterable[tuple[str, Record]] | None:
        world = self._world
        rows = world.build_eval_dataset() if split == "test" else world.build_dataset()
        return rows and ((f"{self.env} ({split})", row) for row in rows)

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        messages = plain_messages(record["prompt"], where, "prompt")
        prompt = joined(messages)
        answer = str(record.get("answer") or "")
        name = digest(json.dumps([prompt, answer, record.get("info")], default=str))
        several = messages if len(messages) > 1 else None
        question = Question(f"{self._source}/{split}/{name}", prompt, answer, messages=several)
        self._rows[question.question_id] = record
        return [(name, question)]  # games often have one prompt


class Rollout:
    """The environment of one trajectory.

    Args:
        played: of the task.
    """

    tools: list[dict[str, Any]] | None = None

    def __init__(self, played: Callable[..., Awaitable[Any]]):
        self._played = played
        self._prompts: asyncio.Queue[list[dict[str, str]] | None] = asyncio.Queue()
        self._responses: asyncio.Queue[Any] = asyncio.Queue()
        self._conversation: list[dict[str, str]] = []

    async def reset(self, question: Question, seed: int) -> list[dict[str, str]]:
        """Starts the loop, and returns its first prompt."""
        self._loop = asyncio.ensure_future(self._played(question, self._respond))
        self._loop.add_done_callback(lambda _: self._prompts.put_nowait(None))
        if not await self._prompted():
            raise Invalid("reset: expected a prompt, got an end without one")
        return self._conversation

    async def step(self, action: str | list[Call]) -> Step:
        """Gives the loop a turn, and returns what it adds to the conversation."""
        response = _response(action)
        conversation = [*self._conversation, _message(response.message)]
        self._responses.put_nowait(response)
        if not await self._prompted():
            output = self._loop.result()
            return Step("", output["reward"], True, components=output["metrics"])
        if self._conversation[: len(conversation)] != conversation:
            raise Invalid("step: expected messages behind the conversation, got another one")
        return Step("\n".join(m["content"] for m in self._conversation[len(conversation) :]))

    async def close(self) -> None:
        """Stops the loop."""
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)

    async def _respond(self, prompt: list[Any], tools: list[Any] | None, **_: Any) -> Any:
        names = ("name", "description", "parameters")
        functions = [{name: getattr(tool, name) for name in names} for tool in tools or ()]
        self.tools = [{"type": "function", "function": f} for f in functions] or None
        self._prompts.put_nowait([_message(message) for message in prompt])
        return await self._responses.get()

    async def _prompted(self) -> bool:
        """Waits for the loop's next prompt; False at its end."""
        prompt = await self._prompts.get()
        if prompt is None:
            self._loop.result()  # raises what ended it
            return False
        self._conversation = prompt
        return True


def _response(turn: str | list[Call]) -> Any:
    """Returns a turn as the package's response of a model."""
    from verifiers import types

    calls = [
        types.ToolCall(id=f"call_{number}", name=name, arguments=json.dumps(arguments))
        for number, (name, arguments) in enumerate(turn if isinstance(turn, list) else ())
    ]
    message = types.ResponseMessage(
        content="" if calls else turn,
        tool_calls=calls or None,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )
    return types.Response(id="", created=0, model="policy", message=message)


def _message(message: Any) -> dict[str, str]:
    """Returns role and text of one of the package's messages."""
    content = message_text(message.model_dump()["content"], message.role)
    return {"role": message.role, "content": content or ""}
