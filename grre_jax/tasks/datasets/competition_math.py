r"""MATH: 12,500 competition problems (Hendrycks et al., "Measuring Mathematical Problem Solving
With the MATH Dataset", arXiv 2103.03874).

A record is {"problem", "level", "type", "solution"}, the solution with its answer in \boxed{}: the
authors' folders train/ and test/ of one JSON file a problem, JSON lines, or Parquet. The level and
subject can be chosen.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from grre_jax.domains import checked
from grre_jax.json_files import require
from grre_jax.tasks.datasets.stored_questions import Entry, StoredQuestions
from grre_jax.tasks.datasets.stored_records import Record
from grre_jax.tasks.task import Question, Verdict
from grre_jax.tasks.verifiers.math import canonical, final_expression, library, verify_math

_Subject = Literal[
    "algebra",
    "counting & probability",
    "geometry",
    "intermediate algebra",
    "number theory",
    "prealgebra",
    "precalculus",
]
TEMPLATE = "{question}\n\nReason step by step, and put the final answer in \\boxed{}."


@dataclass(eq=False, repr=False)
class Mathematics(StoredQuestions):
    """A task whose answers are judged by math-verify.

    Args:
        template: the prompt, with {question} where the record's own goes.
        refuse_copies: whether an answer that is an expression of the question is refused, unless
            the right one is written so.

    Raises:
        UsageError: an option out of its domain, or math-verify is not installed.
    """

    template: str = "{question}"
    refuse_copies: bool = True

    def __post_init__(self):
        super().__post_init__()
        library()

    def verify(self, question: Question, completion: str) -> Verdict:
        """Reward 1 if the answer is right, else 0; "answered" says if there is one."""
        return verify_math(question, completion, self.refuse_copies)

    def final_answer(self, completion: str) -> str | None:
        r"""The answer in one notation ("1/2" for 0.5 and for \frac12); None if there is none."""
        given = final_expression(completion)
        return None if given is None else canonical(given) or None


@dataclass(eq=False, repr=False)
class CompetitionMath(Mathematics):
    """The task; see the module's text.

    Args:
        levels: of 1 to 5, those that are asked; None for all.
        subjects: such as ["Algebra", "Geometry"]; None for all.

    Attributes:
        name: "math".
    """

    name = "math"
    hub = ("DigitalLearningGmbH/MATH-lighteval", None)
    hub_test = True

    template: str = TEMPLATE
    levels: tuple[Annotated[int, "[1, 5]"], ...] | None = None
    subjects: tuple[str, ...] | None = None

    def __post_init__(self):
        super().__post_init__()
        words = [subject.lower() for subject in self.subjects or ()]
        self._subjects = checked("subjects", tuple[_Subject, ...], words)

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        problem = require(record.get("problem"), str, where, "problem")
        solution = require(record.get("solution"), str, where, "solution")
        # MATH-500 has the number alone, and "subject" in place of "type".
        level = str(record.get("level")).removeprefix("Level ")
        subject = str(record.get("type", record.get("subject", ""))).lower()
        if self.levels is not None and level not in map(str, self.levels):
            return []
        if self.subjects is not None and subject not in self._subjects:
            return []
        boxed = "\\boxed" in solution or "\\fbox" in solution
        answer = final_expression(solution) if boxed else None
        if answer is None:
            self._leave_out(where, f"no answer in \\boxed{{}} ({solution[-60:]!r})")
            return []
        return [self._entry(split, problem, answer, solution)]
