"""Tasks: their interface, and the lookup of a task by name.

A task is a source of questions and the judge of their answers. The loop uses nothing else of
it: it takes the question at a position of the training stream, samples completions, and has each
verified.

A task of one's own is any object with `name`, `question`, `evaluation` and `verify`, returned by a
function that is named `package.module:function` or `path/to/file.py:function`:

    # coin.py
    from grre_jax.tasks import Question, Verdict

    class Coin:
        name = "coin"
        def question(self, position):
            return Question(f"coin/{position}", "Heads or tails?", "heads")
        def evaluation(self, count):
            return [Question("coin/held-out", "Tails or heads?", "heads")]
        def verify(self, question, completion):
            correct = question.answer in completion.lower()
            return Verdict(reward=1.0 if correct else -1.0, correct=correct)

    def build(seed=0):
        return Coin()

    tasks.build("coin.py:build")
"""

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import grre_jax
from grre_jax.domains import ConfigError, nearest, shown
from grre_jax.errors import UsageError, raised_in

# Imported when asked for, so that naming the tasks costs nothing.
_BUILT_IN = {
    "arithmetic": "grre_jax.tasks.datasets.arithmetic:Arithmetic",
    "gymnasium": "grre_jax.tasks.environments.gymnasium:Gymnasium",
    "gsm8k": "grre_jax.tasks.datasets.gsm8k:GSM8K",
    "guru_math": "grre_jax.tasks.datasets.guru_math:GuruMath",
    "math": "grre_jax.tasks.datasets.competition_math:CompetitionMath",
    "openenv": "grre_jax.tasks.environments.openenv:OpenEnv",
    "questions": "grre_jax.tasks.datasets.questions:Questions",
    "reasoning_gym": "grre_jax.tasks.datasets.reasoning_gym:ReasoningGym",
    "toolace": "grre_jax.tasks.datasets.toolace:ToolACE",
    "verifiers": "grre_jax.tasks.environments.verifiers:Verifiers",
}


@dataclass(frozen=True)
class Question:
    """One question, as text.

    Attributes:
        question_id: names the question for good, whichever source, order or run it came through
            ("arithmetic/3+5*2-1").
        prompt: of the model, before any chat template.
        answer: the right answer, as the task's verifier reads it.
        demonstration: a completion to imitate in supervised training, where the task has one.
        messages: the conversation that the policy reads in place of the prompt alone, {"role",
            "content"} each, which ends with a user's; None for one user's turn. For tokenizers with
            a chat template.

    Examples:
        A question of a task of one's own:

        >>> from grre_jax import tasks
        >>> question = tasks.Question("sums/1+2", prompt="1+2=", answer="3", demonstration="3$")
        >>> tasks.CharTokenizer("0123456789+=$").encode_prompt(question)
        [1, 10, 2, 11]
    """

    question_id: str
    prompt: str
    answer: str
    demonstration: str | None = None
    messages: tuple[dict[str, str], ...] | None = None


CORRECT = "correct"  # the component of a verdict's correctness, 0 or 1, also in stored records


@dataclass(frozen=True)
class Verdict:
    """The judgement of one completion.

    Reward and correctness are two things: the reward may be shaped, correctness counts completions
    for accuracy, pass@k and maj@k. Correctness is kept as the component "correct": give it as
    `correct` or as that component. A task that gives neither has an accuracy only where all its
    rewards are 0 or 1.

    Attributes:
        reward: what the policy is trained on; None for no verdict, so that the completion is left
            out of its group (a verifier that crashes or hangs gives none either).
        components: the parts the reward is made of, by name; one that is None or left out does not
            apply to this completion.
        correct: whether the completion is right, which becomes a component; None if the task does
            not judge it, or gives the component.

    Examples:
        A wrong answer that is a number has a small reward:

        >>> from grre_jax import tasks
        >>> tasks.Verdict(0.1, {"number": 1.0}, correct=False).components
        {'number': 1.0, 'correct': False}
    """

    reward: float | None
    components: dict[str, float | None] = field(default_factory=dict)
    correct: bool | None = field(default=None, compare=False)  # a component

    def __post_init__(self):
        # Nothing raises here: `judging` checks what a verifier returns and counts what it refuses.
        if self.correct is not None and isinstance(self.components, dict):
            components = dict(self.components)
            components.setdefault(CORRECT, self.correct)
            object.__setattr__(self, "components", components)


@runtime_checkable
class Task(Protocol):
    """A source of questions and the judge of their answers.

    Optional, used where present: `tokenizer`, the tokenizer the task was made for;
    `training_source` and `evaluation_source`, the names under which provenance records where the
    questions come from ("gsm8k/train", "gsm8k/test"); `questions_at(positions)`, the questions at
    several positions, equal to `question` of each; `final_answer(completion)`, what a completion
    answers, as a text that is the same for answers that mean the same, None where it answers
    nothing: completions then vote (maj@k). Like `verify` it never raises for what a model wrote,
    and it judges answers of one text alike; `trusted_verifier = True`: `verify` is quick and cannot
    hang or crash, so that it need not run in processes of its own (see `pool`), where every other
    task's does: there it must give the same verdict whatever it judged before, and has no
    accelerator.
    """

    name: str

    def question(self, position: int) -> Question:
        """The question at a position (0, 1, ...) of the training stream: always the same."""
        ...

    def evaluation(self, count: int) -> list[Question]:
        """The first `count` held-out questions, or all; none is ever in the training stream."""
        ...

    def verify(self, question: Question, completion: str) -> Verdict:
        """Judges a completion, however malformed; raises for nothing that a model wrote. May be a
        coroutine: completions are then judged side by side.
        """
        ...


def names() -> list[str]:
    """The built-in tasks, in alphabetical order.

    Examples:
        >>> from grre_jax import tasks
        >>> [name for name in tasks.names() if name.startswith("g")]
        ['gsm8k', 'guru_math', 'gymnasium']
    """
    return sorted(_BUILT_IN)


def build(name: str, seed: int = 0, **options: Any) -> Task:
    """Makes a task from its name.

    Args:
        name: a built-in task (`names()`), or one's own as "package.module:function" or
            "path/to/file.py:function". The function is called with the options, and with `seed` if
            it takes one, and returns the task.
        seed: orders the training stream; the held-out questions do not depend on it.
        options: the task's own options.

    Raises:
        UsageError: an unknown task, an option it does not have, a hook that cannot be loaded or
            returns no task.

    Examples:
        >>> from grre_jax import tasks
        >>> task = tasks.build("arithmetic", seed=0, operands=2)
        >>> question = task.question(0)
        >>> question.prompt, question.answer
        ('9*8>', '2')
        >>> task.verify(question, "2$").reward, task.verify(question, "3$").reward
        (1.0, 0.0)
        >>> len(task.evaluation(5))
        5
    """
    make = factory(name)
    parameters = inspect.signature(make).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    arguments = {"seed": seed, **options} if "seed" in parameters or takes_any else options
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:  # one from inside would not name the option
        raise UsageError(
            f"Task {name!r}: {error}; its options are {', '.join(parameters)}."
        ) from error
    task = make(**arguments)
    judge = "environment" if hasattr(task, "environment") else "verify"
    needed = ("name", "question", "evaluation", judge)
    if missing := [attribute for attribute in needed if not hasattr(task, attribute)]:
        raise UsageError(
            f"{name} returned a {type(task).__name__} without the required {', '.join(missing)}."
        )
    return task


def questions(task: Task, positions: Sequence[int]) -> Iterable[Question]:
    """The questions at positions of a task's training stream: drawn together if the task has
    `questions_at`, else one by one, each when it is taken.
    """
    together = getattr(task, "questions_at", None)
    return together(positions) if together else map(task.question, positions)


def check_template(template: str, word: str = "question") -> None:
    """Raises ConfigError if a template has no {word}."""
    if f"{{{word}}}" not in template:
        raise ConfigError("template", f"a text with {{{word}}}", template)


def is_environment(task: Any) -> bool:
    """True for a task whose completions are trajectories: it has `environment()` in place of
    `verify`, and perhaps `version`, a text, and `separator`, the text behind each message for
    tokenizers without a chat template.
    """
    return callable(getattr(task, "environment", None))


def reward_name(task: Task) -> str:
    """Names the function that gives a task's rewards, with its version.

    Data sets keep the name for good, and runs compare it, so a built-in task has one that does not
    follow its file: `grre_jax.tasks.gsm8k:GSM8K.verify`.

    Args:
        task: a task, built in or not.

    Returns:
        The name and the task's `reward_version`, or this package's version where the task has none.
    """
    kind = type(task)
    module = kind.__module__.replace("grre_jax.tasks.datasets.", "grre_jax.tasks.")
    method = "environment" if is_environment(task) else "verify"
    source = getattr(task, "reward_source", f"{module}:{kind.__qualname__}.{method}")
    return f"{source} {getattr(task, 'reward_version', grre_jax.__version__)}"


def factory(name: str) -> Callable:
    """Returns what makes a task: the class of a built-in one, one's own class or function.

    Args:
        name: as of `build`.

    Raises:
        UsageError: an unknown task, or a hook that cannot be loaded.
    """
    if ":" not in name and name not in _BUILT_IN:
        domain = f"FILE.py:FUNCTION or one of {', '.join(names())}{nearest(name, _BUILT_IN)}"
        raise ConfigError("task.name", domain, name)
    return load_function(_BUILT_IN.get(name, name))


@contextlib.contextmanager
def making(field: str, name: str, arguments: dict[str, Any]) -> Iterator[None]:
    """A context in which an error of another package, or of the user's own program, becomes a
    UsageError.

    Args:
        field: the option that names the object.
        name: its value.
        arguments: of the object.
    """
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        domain = f"the name of an installed one that takes {arguments} ({reason})"
        raise ConfigError(field, domain, name) from error


def load_function(reference: str) -> Callable:
    """Returns a function or class by its place.

    Args:
        reference: "package.module:FUNCTION" or "path/to/file.py:FUNCTION".

    Raises:
        UsageError: the module or the function cannot be loaded.
    """
    location, _, attribute = reference.rpartition(":")
    try:
        module = (_module_at if location.endswith(".py") else _module_named)(location)
        function = getattr(module, attribute)
    except Exception as error:
        raise UsageError(
            f"{reference!r}: expected module:FUNCTION or path/to/file.py:FUNCTION, got"
            f" {raised_in(location, error)}: {type(error).__name__}: {error}."
        ) from error
    if not callable(function):
        raise UsageError(f"{reference!r}: expected a function, got {shown(function)}.")
    return function


def _module_at(location: str) -> ModuleType:
    path = Path(location)
    # Dataclasses look their module up in sys.modules, so the module goes there before it runs,
    # under a name no package can have.
    name = f"grre_task:{path.resolve()}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module_named(location: str) -> ModuleType:
    # A console script does not search the folder it is run in; someone who types mymodule:build
    # means the one lying there.
    searched = list(sys.path)
    sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(location)
    finally:
        sys.path[:] = searched
