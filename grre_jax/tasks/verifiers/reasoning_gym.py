"""reasoning-gym's own scorers.

Some evaluate the answer, as Python or as sympy. They are given the stored answer, lists, and
expressions of numbers, letters and elementary functions, which can run nothing; other texts score
0. Large powers are not refused: the verifiers' processes are ended at their time limit.
"""

import functools
import inspect
import re
from typing import Any

from grre_jax.tasks.task import Verdict

_LONGEST_ANSWER = 10_000  # characters
_EVALUATORS = re.compile(r"\b(?:eval|literal_eval|exec|parse_expr|sympify|lambdify)\s*\(")
_OWN_TEXTS = ("basic_arithmetic", "bitwise_arithmetic", "codeio", "propositional_logic")
_LIST = re.compile(r"(?:[\w\s,'\"\[\]+\-]|\.(?=[0-9]))*")
_EXPRESSION = re.compile(r"[A-Za-z0-9\s.+\-*/()]*")
_FUNCTIONS = "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt pi".split()


def verify_entry(entry: dict[str, Any], entries: Any, answer: str | None) -> Verdict:
    """Returns reward 1 if a data set's scorer gives an answer full marks, else 0.

    Args:
        entry: the question as the package made it.
        entries: the data set that made it.
        answer: of a completion; None without one.

    Returns:
        The verdict, with the component "score": what the scorer gives, part marks included.

    Raises what the scorer raises, if it raises on the stored answer too.
    """
    score = 0.0
    if answer is not None and len(answer) <= _LONGEST_ANSWER and _is_harmless(answer, entry):
        try:
            score = min(1.0, float(entries.score_answer(answer, entry)))  # some round up
        except Exception:  # the text is the model's: it is not right
            entries.score_answer(entry["answer"], entry)
    return Verdict(float(score == 1), {"score": score}, correct=score == 1)


def _is_harmless(answer: str, entry: dict[str, Any]) -> bool:
    name = entry["metadata"]["source_dataset"]
    if answer == str(entry["answer"]).strip() or name in _OWN_TEXTS or not _evaluates(name):
        return True
    plain = _EXPRESSION.fullmatch(answer) and not re.search(r"\.\s*[A-Za-z]", answer)
    functions = set(re.findall("[A-Za-z]{2,}", answer)) <= set(_FUNCTIONS)
    return bool(_LIST.fullmatch(answer) or (plain and functions))


@functools.cache
def _evaluates(name: str) -> bool:
    from reasoning_gym.factory import DATASETS

    dataset = DATASETS[name][0]
    sources = (inspect.getsource(inspect.getmodule(o)) for o in (dataset, dataset.score_answer))
    return any(_EVALUATORS.search(source) for source in sources)
