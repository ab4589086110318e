r"""MATH: 12,500 competition problems (Hendrycks et al., "Measuring Mathematical Problem Solving
With the MATH Dataset", arXiv 2103.03874).

A record is {"problem", "level", "type", "solution"}, the solution with its answer in \boxed{}: the
authors' folders train/ and test/ of one JSON file a problem, JSON lines, or Parquet.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from grre_jax.json_files import require
from grre_jax.tasks.datasets.stored_questions import Entry, Record, StoredQuestions
from grre_jax.tasks.verifiers.math import canonical, final_expression, library, verify_math

TEMPLATE = "{question}\n\nReason step by step, and put the final answer in \\boxed{}."


@dataclass(eq=False, repr=False)
class Mathematics(StoredQuestions):
    """A task whose answers are judged by math-verify.

    Args:
        template: the prompt, with {question} where the record's own goes.

    Raises:
        UsageError: an option out of its domain, or math-verify is not installed.
    """

    template: str = "{question}"

    def __post_init__(self):
        super().__post_init__()
        library()

    verify = staticmethod(verify_math)

    def final_answer(self, completion: str) -> str | None:
        r"""The answer in one notation ("1/2" for 0.5 and for \frac12); None without one."""
        expression = final_expression(completion)
        return None if expression is None else canonical(expression) or None


@dataclass(eq=False, repr=False)
class CompetitionMath(Mathematics):
    """The task; see the module's text.

    Attributes:
        name: "math".
    """

    name = "math"
    hub = ("DigitalLearningGmbH/MATH-lighteval", None)
    hub_test = True

    template: str = TEMPLATE

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        problem = require(record.get("problem"), str, where, "problem")
        solution = require(record.get("solution"), str, where, "solution")
        boxed = "\\boxed" in solution or "\\fbox" in solution
        answer = final_expression(solution) if boxed else None
        if answer is None:
            self._leave_out(where, f"no answer in \\boxed{{}} ({solution[-60:]!r})")
            return []
        return [self._entry(split, problem, answer, solution)]
