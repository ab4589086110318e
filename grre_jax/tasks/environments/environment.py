"""The interface of environments, the environments of trajectories that are under way, run in the
caller's process (`pool` runs them in others), and the base of tasks whose questions are the
beginnings of an environment, decided by a seed.
"""

import abc
import contextlib
import json
import random
import zlib
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from grre_jax.domains import Record, shown
from grre_jax.tasks.judging import Failure, Invalid, checked_verdict, guarded, waited
from grre_jax.tasks.task import Question, Verdict, check_template
from grre_jax.tasks.tokenizers.characters import CharTokenizer
from grre_jax.tasks.verifiers.function_calls import Call, NotCalls, read_calls

MOST_CHARACTERS = 16_384  # of an observation
END = "\x03"  # of a turn, in characters
ASCII = "".join(map(chr, range(32, 127))) + "\n" + END


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


@dataclass(frozen=True)
class Opening:
    """The beginning of a question's trajectories.

    Attributes:
        messages: what the policy reads first.
        tools: definitions of functions for the chat template, None for none.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


@dataclass(frozen=True)
class Reply:
    """An environment's answer to an action.

    Attributes:
        observation, reward, done: of `Step`.
        called: the action was taken as calls of tools.
        components: of `Step`, empty for none.
    """

    observation: str
    reward: float
    done: bool
    called: bool
    components: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """The address of a trajectory.

    Attributes:
        key: names it among those under way, of all that share the processes.
        question, seed: its environment's.
        opening: `fingerprint` of the messages that it begins with; None if they are not known.
    """

    key: tuple[int, ...]
    question: Question
    seed: int
    opening: int | None = None


class Environments:
    """Environments of trajectories, kept from one step to the next.

    A process is sent the arguments of a request, and sends the fields of the answer as JSON.

    Args:
        task: makes an environment for each trajectory.
    """

    def __init__(self, task: Any):
        self._task = task
        self._kept: dict[Any, Environment] = {}

    def __call__(self, kind: str, *asked: Any) -> Any:
        """Answers a request, or returns its failure; KeyboardInterrupt alone goes through.

        Args:
            kind: "open", "step" or "end".
            *asked: arguments of that method.
        """
        return guarded(getattr(self, kind), *asked)

    def open(self, question: Question, seed: int) -> Opening:
        """Returns the beginning of all trajectories of a question and seed."""
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
        return Opening(messages, tools)

    def step(self, trace: Trace, before: list[tuple[str, str]], action: str) -> Reply:
        """Answers a trajectory's action, after the actions and observations before it."""
        environment = self._kept.pop(trace.key, None)
        try:
            if environment is None:
                environment = self._task.environment()
                messages = waited(environment.reset(trace.question, trace.seed))
                if trace.opening not in (None, fingerprint(messages)):
                    raise Invalid("reset: expected the messages of the opening, got others")
                for earlier, observation in before:
                    if _reply(environment, earlier).observation != observation:
                        raise Invalid("step: expected the observations of before, got others")
            reply = _reply(environment, action)
            if not reply.done:
                self._kept[trace.key] = environment
            return reply
        finally:
            if trace.key not in self._kept:
                _end(environment)

    def end(self, trace: Trace) -> dict[str, Any]:
        """Closes the environment of a trajectory that was ended by a limit."""
        _end(self._kept.pop(trace.key, None))
        return {}


def _end(environment: Any) -> None:
    if close := getattr(environment, "close", None):
        waited(close())


def fingerprint(messages: list[dict[str, Any]]) -> int:
    """Returns a checksum of messages, the same in every process."""
    return zlib.crc32(json.dumps(messages, sort_keys=True).encode())


def _reply(environment: Any, action: str) -> Reply:
    """Returns what an environment answers to a turn, checked."""
    calls = []
    if getattr(environment, "tools", None):
        with contextlib.suppress(NotCalls):
            calls = read_calls(action)
    step = waited(environment.step(calls or action))
    if not isinstance(step, tuple) or len(step) not in (4, 5):
        raise Invalid(f"step: expected observation, reward, done, info, got {shown(step)}")
    observation, reward, done, _, components = Step(*step)
    if not isinstance(observation, str) or len(observation) > MOST_CHARACTERS:
        raise Invalid(
            f"observation: expected a text of at most {MOST_CHARACTERS:,} characters, got"
            f" {shown(observation)}"
        )
    verdict = checked_verdict(Verdict(reward, components or {}))
    return Reply(observation, verdict.reward, bool(done), bool(calls), verdict.components)


class InProcessEnvironments:
    """Runs environments in the caller's own process and thread.

    Args:
        task: makes the environments.
    """

    def __init__(self, task: Any):
        self._environments = Environments(task)

    def open(self, question: Question, seed: int) -> Opening | Failure:
        """Returns the beginning of all trajectories of a question and seed, or a failure."""
        return self._ask(Opening, (seed,), "open", question, seed).result()

    def step(
        self, trace: Trace, before: list[tuple[str, str]], action: str
    ) -> Future[Reply | Failure]:
        """Answers a trajectory's action, after the actions and observations before it; a failure is
        returned, not raised.
        """
        return self._ask(Reply, trace.key, "step", trace, before, action)

    def end(self, trace: Trace) -> None:
        """Closes the environment of a trajectory that was ended by a limit."""
        self._ask(dict, trace.key, "end", trace)

    def close(self) -> None:
        """Ends the processes, if any; they are started again when needed."""

    def _ask(self, kind: type, key: tuple[int, ...], *asked: Any) -> Future[Any]:
        """Returns the answer to a request of `Environments`.

        Args:
            kind: class of the answer.
            key: requests of one go to one process.
            *asked: the request.
        """
        future: Future[Any] = Future()
        future.set_result(self._environments(*asked))
        return future


@dataclass(eq=False, repr=False)
class SeededWorlds(Record, abc.ABC):
    """The base of such tasks, whose fields are their options.

    Args:
        template: the first message, with {observation}.

    Attributes:
        name: the task's, as rollouts record it.
        tokenizer: ASCII characters, for a new model.
        separator: the end of the line behind each observation.

    Raises:
        UsageError: an option out of its domain.
    """

    name: ClassVar[str]
    separator = "\n"
    tokenizer = CharTokenizer(ASCII, END)

    template: str = "{observation}"

    def __post_init__(self):
        super().__post_init__()
        check_template(self.template, "observation")

    @property
    @abc.abstractmethod
    def world(self) -> str:
        """The environment's name, part of the questions' names."""

    @property
    def training_source(self) -> str:
        """Name of the training stream, for provenance."""
        return f"{self.name}/{self.world}/train"

    @property
    def evaluation_source(self) -> str:
        """Name of the held-out questions, for provenance."""
        return f"{self.name}/{self.world}/held-out"

    def question(self, position: int) -> Question:
        """A world of the training stream, which its id and the environment's seed decide."""
        return Question(f"{self.training_source}/{position}", "", "")

    def evaluation(self, count: int) -> list[Question]:
        """The first `count` worlds that are held out."""
        return [Question(f"{self.evaluation_source}/{number}", "", "") for number in range(count)]

    def opening(self, observation: str) -> list[dict[str, str]]:
        """Returns the messages of an observation that a trajectory begins with."""
        return [{"role": "user", "content": self.template.replace("{observation}", observation)}]


def world_seed(question: Question, seed: int) -> int:
    """Returns the seed of a question's world in a group with this seed, from 0 to 2**31 - 1."""
    return random.Random(f"{question.question_id}/{seed}").getrandbits(31)
