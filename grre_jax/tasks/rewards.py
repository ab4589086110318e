"""Reward functions: plain functions in place of a task's verifier.

A reward function takes a `Question` and the text of a completion, and may be `async`. It returns

- a number, the reward;
- a dictionary of numbers, the components of the reward: their sum is the reward, unless one of them
  is "reward"; "correct", 0 or 1, counts for accuracy and not for the sum;
- a `Verdict`, as the functions of `grre_jax.tasks.verifiers` do;
- None for no verdict: the function does not apply to this completion.

Functions that are `async` judge completions side by side, as a judge behind an API needs it.

    # my.py
    def score(question, completion):
        return float(question.answer in completion)

    grre train CONFIG --task.reward my.py:score
    grre train CONFIG --task.reward my.py:score,my.py:format=0.2

Of several functions each reward is a component under the function's name, and the reward is their
weighted sum over those that apply.
"""

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grre_jax.domains import shown
from grre_jax.errors import UsageError
from grre_jax.tasks.judging import finite_number
from grre_jax.tasks.task import CORRECT, Question, Task, Verdict, is_environment, load_function

RewardFunction = Callable[[Question, str], Any]

IN_PYTHON = "function:"  # begins the names of functions that were given as objects
_registered: dict[str, RewardFunction] = {}


@dataclass(frozen=True)
class WeightedReward:
    """A reward function with its weight in the sum.

    Attributes:
        source: "path/to/file.py:FUNCTION", "package.module:FUNCTION" or the name of `register`.
        name: the component's.
        function: the function.
        weight: of its reward.
    """

    source: str
    name: str
    function: RewardFunction
    weight: float


def register(function: RewardFunction) -> str:
    """Returns a name by which `task.reward` finds a function of this process.

    The name follows from the function's own, so that a program that is started again gives it again
    and can resume its run. A function that was registered under it before is replaced.

    Args:
        function: the reward function.

    Raises:
        UsageError: it cannot be called.

    Examples:
        >>> from grre_jax import tasks
        >>> from grre_jax.tasks.rewards import register, with_rewards
        >>> def right(question, completion):
        ...     return float(question.answer in completion)
        >>> name = register(right)
        >>> task = with_rewards(tasks.build("arithmetic"), [name])
        >>> question = task.question(0)
        >>> name, task.verify(question, question.answer).reward
        ('function:right', 1.0)
    """
    if not callable(function):
        raise UsageError(f"reward: expected a function, got {shown(function)}.")
    written = getattr(function, "__name__", type(function).__name__)
    name = IN_PYTHON + (re.sub(r"\W+", "", written) or "reward")
    _registered[name] = function
    return name


def _load(text: str) -> WeightedReward:
    source, _, weight = text.partition("=")
    try:
        number = finite_number("weight", float(weight or 1))
    except ValueError as error:
        raise UsageError(f"task.reward: expected a number behind =, got {text!r}.") from error
    if source.startswith(IN_PYTHON) and source not in _registered:
        raise UsageError(f"task.reward: expected a function of this program, got {text!r}.")
    function = _registered.get(source) or load_function(source)
    return WeightedReward(source, source.rpartition(":")[2], function, number)


def with_rewards(task: Task, rewards: Sequence[str]) -> Task:
    """Returns a task with reward functions in place of its verifier; the task itself if there are
    none.

    Args:
        task: source of the questions.
        rewards: "path/to/file.py:FUNCTION" or "package.module:FUNCTION", each perhaps with
            "=WEIGHT" behind it.

    Raises:
        UsageError: a function cannot be loaded, a weight is not a number, two functions have one
            name, or the task has an environment, which gives the rewards itself.

    Examples:
        Two functions of a file, the second with a fifth of the weight:

        >>> from pathlib import Path
        >>> from grre_jax import tasks
        >>> from grre_jax.tasks.rewards import with_rewards
        >>> _ = Path("my.py").write_text('''
        ... def right(question, completion):
        ...     return float(question.answer in completion)
        ... def short(question, completion):
        ...     return float(len(completion) < 20)
        ... ''')
        >>> task = with_rewards(tasks.build("arithmetic"), ["my.py:right", "my.py:short=0.2"])
        >>> verdict = task.verify(task.question(0), "I do not know.")
        >>> verdict.reward, verdict.components
        (0.2, {'right': 0.0, 'short': 1.0})
    """
    if not rewards:
        return task
    if is_environment(task):
        raise UsageError(f"task.reward: expected empty, as {task.name} has an environment.")
    loaded = [_load(text) for text in rewards]
    names = [reward.name for reward in loaded]
    if len(set(names)) < len(names):
        raise UsageError(f"task.reward: expected distinct function names, got {', '.join(names)}.")
    return RewardedTask(task, loaded)


class RewardedTask:
    """A task whose completions are judged by reward functions.

    Args:
        task: source of the questions; everything but its verifier stays.
        rewards: the functions.
    """

    def __init__(self, task: Task, rewards: Sequence[WeightedReward]):
        self._task = task
        self._rewards = list(rewards)
        self.reward_source = ",".join(f"{r.source}={r.weight:g}" for r in rewards)
        # A function that was given as an object cannot be sent to another process.
        self.trusted_verifier = any(r.source.startswith(IN_PYTHON) for r in rewards)
        # Where one function is awaited, completions are judged side by side.
        awaited = any(inspect.iscoroutinefunction(reward.function) for reward in rewards)
        self.verify = self._awaited if awaited else self._verify

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def _verify(self, question: Question, completion: str) -> Verdict | None:
        """Judges a completion; None if no function applies to it."""
        return self._sum([reward.function(question, completion) for reward in self._rewards])

    async def _awaited(self, question: Question, completion: str) -> Verdict | None:
        values = []
        for reward in self._rewards:
            value = reward.function(question, completion)
            values.append(await value if inspect.isawaitable(value) else value)
        return self._sum(values)

    def _sum(self, values: Sequence[Any]) -> Verdict | None:
        verdicts = [_verdict(value) for value in values]
        components: dict[str, float | None] = {}
        terms = []
        for reward, verdict in zip(self._rewards, verdicts, strict=True):
            components[reward.name] = verdict.reward
            if verdict.reward is None:
                continue
            terms.append(reward.weight * verdict.reward)
            if CORRECT in verdict.components:
                components[CORRECT] = verdict.components[CORRECT]
        if len(verdicts) == 1:
            components = verdicts[0].components
        return Verdict(sum(terms), components) if terms else None


def _verdict(value: Any) -> Verdict:
    """Returns the verdict of one function's result, without a reward if it gives none.

    Raises:
        Invalid: the result is neither a number, a dictionary of numbers, a verdict nor None.
    """
    if isinstance(value, Verdict):
        return value
    parts = value if isinstance(value, dict) else {"reward": value}
    parts = {name: _number(name, part) for name, part in parts.items()}
    if "reward" in parts:  # None is no verdict, whatever else there is
        reward = parts.pop("reward")
    else:
        summed = [part for name, part in parts.items() if name != CORRECT and part is not None]
        reward = sum(summed) if summed else parts.get(CORRECT)
    return Verdict(reward, parts)


def _number(name: str, value: Any) -> float | None:
    """Returns a number as a float; None for None and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return finite_number(name, value)
