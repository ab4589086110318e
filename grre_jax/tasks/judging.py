"""Completions to rewards, whatever the verifier does: a completion without a verdict has no reward
(NaN), is counted by its kind of failure, and the run goes on.

Kinds of failure: the verifier gives no verdict in time ("timeout"), its process ends ("crash"), it
raises ("error"), it does not judge this completion ("none": it returns None or a reward of None),
or what it returns is not a verdict ("invalid": a reward or component that is not a finite number, a
correctness that is not 0 or 1). The first two need processes of their own (`pool`).
"""

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import itertools
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from grre_jax.domains import shown
from grre_jax.tasks.task import CORRECT, Question, Task, Verdict

FAILURES = ("timeout", "crash", "error", "none", "invalid")
FIELD = "verify_failures"  # of a group's `extra`, and the first word of the metrics' names
REASONS = "verify_reasons"  # of a group's `extra`
MOST_AWAITED = 64  # completions judged side by side by a verifier that is awaited
FAILED_REWARD = "failed_reward"  # of `extra`, by earlier versions: what failures were given
_LARGEST = float(np.finfo(np.float32).max)  # rewards are stored as float32

T = TypeVar("T")
_log = logging.getLogger(__name__)
_logged: set[str] = set()  # kinds of failures


class Invalid(ValueError):
    """A verifier or an environment returned a value outside its domain."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """No verdict.

    Attributes:
        kind: one of FAILURES.
        reason: a few words on what happened.
    """

    kind: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Judged:
    """The judgement of a question's completions.

    Attributes:
        rewards: of each completion, NaN without a verdict [K].
        components: by name [K] each, NaN without a verdict or where one does not apply.
        failures: one of FAILURES for each completion (K), "" for one with a verdict.
        reasons: a few words on each failure (K), "" for a completion with a verdict.
    """

    rewards: Float[np.ndarray, " completions"]
    components: dict[str, Float[np.ndarray, " completions"]]
    failures: list[str]
    reasons: list[str]

    @property
    def extra(self) -> dict[str, Any]:
        """Fields for the `extra` of a rollout group; empty if every completion was judged."""
        if not any(self.failures):
            return {}
        return {FIELD: self.failures, REASONS: self.reasons}


Asked = Sequence[tuple[Question, Sequence[str]]]  # questions, each with its completions
Pairs = Sequence[tuple[Question, str]]  # completions, each with its question


class InProcess:
    """Judges in the caller's own process and thread, one completion after the other; those of a
    task whose `verify` is a coroutine side by side.

    Args:
        task: whose verifier judges.
        timeout: seconds that a completion may take if it is awaited; None for no limit.
    """

    def __init__(self, task: Task, timeout: float | None = None):
        self._task = task
        self._name = task.name
        self._timeout = timeout

    def __call__(self, asked: Asked) -> list[Judged]:
        """Judges completions; returns the judgements, in the order of the questions."""
        pairs = [(question, text) for question, completions in asked for text in completions]
        rest = iter(self._outcomes(pairs))
        return [
            judgement(self._name, question, list(itertools.islice(rest, len(completions))))
            for question, completions in asked
        ]

    def _outcomes(self, pairs: Pairs) -> Sequence[Verdict | Failure]:
        """Returns the verdict on each completion, or the failure to give one."""
        if inspect.iscoroutinefunction(self._task.verify):
            return finished(self._awaited(pairs))
        return [verdict_of(self._task, *pair) for pair in pairs]

    async def _awaited(self, pairs: Pairs) -> list[Verdict | Failure]:
        limit = asyncio.Semaphore(MOST_AWAITED)

        async def outcome(question: Question, completion: str) -> Verdict | Failure:
            try:
                async with limit, asyncio.timeout(self._timeout):
                    return checked_verdict(await self._task.verify(question, completion))
            except TimeoutError:
                return Failure("timeout", f"no answer within {self._timeout:g} s")
            except Exception as error:
                return _failure(error)

        return await asyncio.gather(*itertools.starmap(outcome, pairs))

    def close(self) -> None:
        """Ends the processes, if any; they are started again when needed."""


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine, run in another thread: the caller's may have an event loop
    that runs, as a notebook's has.

    All coroutines of a process run in one loop: what they keep, such as the client of a judge
    behind an API, belongs to the loop in which it was first used.
    """
    return asyncio.run_coroutine_threadsafe(coroutine, _event_loop()).result()


def waited(value: Any) -> Any:
    """Returns the result of a coroutine, or another value as it is."""
    return finished(value) if inspect.iscoroutine(value) else value


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="awaited").start()
    return loop


def verdict_of(task: Task, question: Question, completion: str) -> Verdict | Failure:
    """Returns the verifier's verdict with Python's own floats, or the failure."""
    return guarded(lambda: checked_verdict(waited(task.verify(question, completion))))


def guarded(function: Callable[..., T], *arguments: Any) -> T | Failure:
    """Returns the result of a function that may run what a model wrote, or its failure.

    KeyboardInterrupt alone goes through.
    """
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit included
        return _failure(error)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, Invalid):
        return Failure("invalid", str(error))
    if isinstance(error, TimeoutError):
        return Failure("timeout", error_words(error))
    return Failure("error", error_words(error))


def judgement(task: str, question: Question, outcomes: Sequence[Verdict | Failure]) -> Judged:
    """Returns the judgement of a question's completions from the outcome of each, and logs the
    first failure of each kind in this process.

    A component that a verdict lacks does not apply to its completion.
    """
    failures = [o if isinstance(o, Failure) else Failure("", "") for o in outcomes]
    for failure in failures:
        if failure.kind and failure.kind not in _logged:
            _logged.add(failure.kind)
            _log.warning(
                "task %s failed at question %s (%s: %s): completions without a verdict are not"
                " trained on; they are counted as %s_%s",
                task,
                question.question_id,
                failure.kind,
                failure.reason,
                FIELD,
                failure.kind,
            )
    rows = [Verdict(None) if isinstance(outcome, Failure) else outcome for outcome in outcomes]
    names = dict.fromkeys(name for row in rows for name in row.components)
    return Judged(
        # None, which a component is that does not apply, becomes NaN.
        np.array([row.reward for row in rows], np.float32),
        {n: np.array([row.components.get(n) for row in rows], np.float32) for n in names},
        [failure.kind for failure in failures],
        [failure.reason for failure in failures],
    )


def count_failures(extras: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Completions without a verdict among groups with these `extra` fields: verify_failures in
    all and by kind; {} without any.
    """
    counts = Counter(kind for extra in extras for kind in extra.get(FIELD, ()) if kind)
    kinds = {f"{FIELD}_{kind}": counts[kind] for kind in FAILURES if counts[kind]}
    return {FIELD: counts.total(), **kinds} if counts else {}


def checked_verdict(verdict: Any) -> Verdict | Failure:
    """Returns a verdict with Python's own floats, or the failure to give one.

    Raises:
        Invalid: a value outside its domain.
    """
    if verdict is None or (isinstance(verdict, Verdict) and verdict.reward is None):
        return Failure("none", "the verifier returned no reward")
    if not isinstance(verdict, Verdict):
        raise Invalid(f"verify: expected a Verdict, got {shown(verdict)}")
    components = {
        str(name): None if value is None else finite_number(f"component {name!r}", value)
        for name, value in verdict.components.items()
    }
    correct = components.get(CORRECT, 0.0)
    if correct not in (0, 1) or verdict.correct not in (None, correct):
        raise Invalid(
            f"correct: expected 0 or 1, as `correct` or as component, got {shown(correct)} and"
            f" {shown(verdict.correct)}"
        )
    return Verdict(finite_number("reward", verdict.reward), components)


def finite_number(name: str, value: Any) -> float:
    """Returns a float of float32's range; Invalid for other values, text and arrays included."""
    number = math.nan
    if hasattr(type(value), "__float__") and not getattr(value, "ndim", 0):
        with contextlib.suppress(OverflowError, TypeError, ValueError):
            number = float(value)
    if not abs(number) <= _LARGEST:
        raise Invalid(f"{name}: expected a finite number, got {shown(value)}")
    return number


def error_words(error: BaseException) -> str:
    """An error's class and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
