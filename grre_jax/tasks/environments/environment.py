"""The interface of environments, and the environments of trajectories that are under way."""

import contextlib
import json
import zlib
from typing import Any, NamedTuple, Protocol

from grre_jax.domains import shown
from grre_jax.tasks.judging import Failure, Invalid, checked_verdict, guarded, waited
from grre_jax.tasks.task import Question, Verdict
from grre_jax.tasks.verifiers.function_calls import Call, NotCalls, read_calls

MOST_CHARACTERS = 16_384  # of an observation


class Step(NamedTuple):
    """The result of a step; a plain tuple of the first four does too.

    Attributes:
        observation: what the policy reads next, before any chat template.
        reward: of the action; a trajectory's reward is the sum of its steps'.
        done: the trajectory is over, and the observation is not read.
        info: not read; Gymnasium's steps have it.
        components: parts of the trajectory's reward by name, as those of `tasks.Verdict`; the last
            step's are stored.

    Examples:
        An environment that is over at the right guess, and answers others with the direction:

        >>> from grre_jax.tasks import Question
        >>> from grre_jax.tasks.environments import Step
        >>> class Guess:
        ...     def reset(self, question, seed):
        ...         self.number = int(question.answer)
        ...         return [{"role": "user", "content": question.prompt}]
        ...     def step(self, action):
        ...         if int(action) == self.number:
        ...             return Step(reward=1.0, done=True)
        ...         return Step("<" if self.number < int(action) else ">")
        >>> environment = Guess()
        >>> environment.reset(Question("guess/3", prompt="0 to 9?", answer="3"), seed=0)
        [{'role': 'user', 'content': '0 to 9?'}]
        >>> environment.step("5").observation, environment.step("3").done
        ('<', True)
    """

    observation: str = ""
    reward: float = 0.0
    done: bool = False
    info: Any = None
    components: dict[str, float | None] | None = None


class Environment(Protocol):
    """The world of one trajectory. Both methods may be coroutines.

    Given a question, a seed and actions it must do the same again: where its process ends under
    another trajectory, it is made anew and the actions are repeated.

    Optional, used where present: `tools`, definitions of functions for the model's chat template,
    as transformers takes them; `close()`, called when the trajectory has ended.
    """

    def reset(self, question: Question, seed: int) -> list[dict[str, Any]]:
        """Begins, and returns the messages that the policy reads first: the same for all
        trajectories of a question and seed.
        """
        ...

    def step(self, action: str | list[Call]) -> Step:
        """Takes what the policy wrote in its turn, without the end token: a text, or the calls that
        it makes if the environment has tools.
        """
        ...


def tool_definition(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Returns the definition of a function for chat templates, its parameters as JSON schema."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def is_environment(task: Any) -> bool:
    """True for a task whose completions are trajectories: it has `environment()` in place of
    `verify`, and perhaps `version`, a text, and `separator`, the text behind each message for
    tokenizers without a chat template.
    """
    return callable(getattr(task, "environment", None))


class Environments:
    """Environments of trajectories, kept from one step to the next.

    Requests and answers are what a process can send: tuples, and dictionaries of JSON values or a
    `judging.Failure`.

    Args:
        task: makes an environment for each trajectory.
    """

    def __init__(self, task: Any):
        self._task = task
        self._kept: dict[Any, Environment] = {}

    def __call__(self, key: Any, kind: str, *asked: Any) -> dict[str, Any] | Failure:
        """Answers a request; KeyboardInterrupt alone goes through.

        Args:
            key: the trajectory's.
            kind: "open", "step" or "close".
            *asked: of "open" the question and seed; of "step" the question and seed, the actions
                and observations before, the action, and the `fingerprint` of the opening or None.
        """
        answers = {"open": self._open, "step": self._step, "close": self._close}
        return guarded(answers[kind], key, *asked)

    def _open(self, _: Any, question: Question, seed: int) -> dict[str, Any]:
        environment = self._task.environment()
        try:
            messages = waited(environment.reset(question, seed))
            tools = getattr(environment, "tools", None)
        finally:
            _end(environment)
        fits = isinstance(messages, list) and all(
            isinstance(message, dict)
            and all(isinstance(message.get(name), str) for name in ("role", "content"))
            for message in messages
        )
        if not fits or not messages:
            raise Invalid(f"reset: expected messages of role and content, got {shown(messages)}")
        return {"messages": messages, "tools": tools}

    def _step(
        self,
        key: Any,
        question: Question,
        seed: int,
        before: list[tuple[str, str]],
        action: str,
        opening: int | None,
    ) -> dict[str, Any]:
        environment = self._kept.pop(key, None)
        try:
            if environment is None:
                environment = self._task.environment()
                messages = waited(environment.reset(question, seed))
                if opening not in (None, fingerprint(messages)):
                    raise Invalid("reset: expected the messages of the opening, got others")
                for earlier, observation in before:
                    if self._answer(environment, earlier)["observation"] != observation:
                        raise Invalid("step: expected the observations of before, got others")
            answer = self._answer(environment, action)
            if not answer["done"]:
                self._kept[key] = environment
            return answer
        finally:
            if key not in self._kept:
                _end(environment)

    def _answer(self, environment: Any, action: str) -> dict[str, Any]:
        calls = []
        if getattr(environment, "tools", None):
            with contextlib.suppress(NotCalls):
                calls = read_calls(action)
        return _checked(waited(environment.step(calls or action))) | {"called": bool(calls)}

    def _close(self, key: Any) -> dict[str, Any]:
        _end(self._kept.pop(key, None))
        return {}


def _end(environment: Any) -> None:
    if close := getattr(environment, "close", None):
        waited(close())


def fingerprint(messages: list[dict[str, Any]]) -> int:
    """Returns a checksum of messages, the same in every process."""
    return zlib.crc32(json.dumps(messages, sort_keys=True).encode())


def _checked(step: Any) -> dict[str, Any]:
    """Returns a step as JSON values."""
    if not isinstance(step, tuple) or len(step) not in (4, 5):
        raise Invalid(f"step: expected observation, reward, done, info, got {shown(step)}")
    observation, reward, done, _, components = Step(*step)
    if not isinstance(observation, str) or len(observation) > MOST_CHARACTERS:
        raise Invalid(
            f"observation: expected a text of at most {MOST_CHARACTERS:,} characters, got"
            f" {shown(observation)}"
        )
    verdict = checked_verdict(Verdict(reward, components or {}))
    return {
        "observation": observation,
        "reward": verdict.reward,
        "done": bool(done),
        "components": verdict.components,
    }
