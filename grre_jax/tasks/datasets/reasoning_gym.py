"""reasoning-gym's data sets by name: puzzles made by programs (Stojanovski et al., arXiv
2505.24760).

    tasks.build("reasoning_gym", dataset="spell_backward", config={"min_word_len": 3})

An entry is made from its number alone, so the stream needs no storage. A tenth of the numbers'
questions, chosen by a hash of their text, is held out whatever the seed; the stream goes past them.

The reward is 1 if the package's own scorer gives an answer full marks, else 0; its part marks are
only the component "score".

Some scorers evaluate what they are given, as Python or as sympy does. They are given the stored
answer, lists, and expressions of numbers, letters and elementary functions, which can run nothing;
other texts score 0. Large powers are not refused: leave the scorers to processes of their own,
which is the default and which are ended at their time limit.
"""

import functools
import hashlib
import inspect
import itertools
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

from grre_jax import random_streams
from grre_jax.domains import MAX_INTEGER, Positive, Record, Seed, checked
from grre_jax.errors import DataError
from grre_jax.tasks.task import Question, Verdict, check_template, making
from grre_jax.tasks.verifiers.text import after_thinking

_SOURCE_SEED = 0  # of the entries themselves, whichever order they are asked in
_HELD_OUT_ONE_IN = 10
_INSTRUCTION = (
    "\n\nThink step by step, then give the final answer alone between <answer> and </answer>."
)

_LONGEST_ANSWER = 10_000  # characters
_EVALUATORS = re.compile(r"\b(?:eval|literal_eval|exec|parse_expr|sympify|lambdify)\s*\(")
_OWN_TEXTS = ("basic_arithmetic", "bitwise_arithmetic", "codeio", "propositional_logic")
_LIST = re.compile(r"(?:[\w\s,'\"\[\]+\-]|\.(?=[0-9]))*")
_EXPRESSION = re.compile(r"[A-Za-z0-9\s.+\-*/()]*")
_FUNCTIONS = "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt pi".split()


@dataclass(eq=False, repr=False)
class ReasoningGym(Record):
    """The task; see the module's text.

    Args:
        seed: orders the epochs of training.
        dataset: the name of one of the package's data sets.
        config: that data set's own options, but `seed` and `size`.
        size: entries of it that there are, held-out ones included; some data sets have an upper
            limit.
        template: the prompt, with {question} where the entry's question goes.

    Attributes:
        name: "reasoning_gym".
        training_source, evaluation_source: "reasoning_gym/DATASET/train" and
            "reasoning_gym/DATASET/held-out", for provenance.

    Raises:
        UsageError: reasoning-gym is not installed, an unknown data set, options that it refuses, a
            number out of its domain, or a template without {question}.
    """

    name = "reasoning_gym"

    seed: Seed = 0
    dataset: str = "chain_sum"
    config: dict[str, Any] = field(default_factory=dict)
    size: Annotated[int, f"[20, {MAX_INTEGER}]"] = 10_000
    template: str = "{question}" + _INSTRUCTION

    def __post_init__(self):
        super().__post_init__()
        check_template(self.template)
        with making("dataset", self.dataset, self.config):
            import reasoning_gym

            self._entries = reasoning_gym.create_dataset(
                self.dataset, seed=_SOURCE_SEED, size=self.size, **self.config
            )
        self._order = random_streams.EpochStream(self.seed, self.size)
        self.training_source = f"reasoning_gym/{self.dataset}/train"
        self.evaluation_source = f"reasoning_gym/{self.dataset}/held-out"

    def question(self, position: int) -> Question:
        """The question at a position of the training stream.

        Raises:
            UsageError: a position out of the stream.
            DataError: all questions are held out.
        """
        start = self._order[position]
        for number in itertools.chain(range(start, self.size), range(start)):
            if not _is_held_out(self._entry(number)):
                return self._question(number)
        raise DataError(f"size: expected entries that are not held out, got none of {self.size}")

    def evaluation(self, count: int) -> list[Question]:
        """Returns the first `count` held-out questions with distinct prompts, or all if fewer.

        Raises:
            UsageError: count is not an integer >= 1.
            DataError: the data set has no held-out question.
        """
        count = checked("count", Positive, count)
        questions: dict[str, Question] = {}  # by prompt
        for number in range(self.size):
            if len(questions) == count:
                break
            if _is_held_out(self._entry(number)):
                question = self._question(number)
                questions.setdefault(question.prompt, question)
        if not questions:
            raise DataError(f"size: expected entries to hold out, got none of {self.size}")
        return list(questions.values())

    def verify(self, question: Question, completion: str) -> Verdict:
        """Reward 1 if the scorer gives full marks, else 0.

        The answer is what stands between the last <answer> and </answer>, or else the whole
        completion after `</think>`. The component "score" is the scorer's own, from 0 to 1. An
        answer that could run code where the data set evaluates answers scores 0, and so does one
        that its scorer raises on.

        Raises:
            DataError: the question is not one of this data set with these options.
            Exception: what the package's scorer raises, if it raises on the data set's own answer
                too.
        """
        # The answer alone is not always enough to judge by.
        number = question.question_id.removeprefix(f"reasoning_gym/{self.dataset}/")
        is_own = number.isdecimal() and int(number) < self.size
        entry = self._entry(int(number)) if is_own else {}
        if not entry or question.answer != _written(entry):
            raise DataError(
                f"{question.question_id}: expected a question of reasoning-gym's {self.dataset}"
                " with the options of this task, got another."
            )
        answer = _answer(completion)
        score = 0.0
        if answer is not None and len(answer) <= _LONGEST_ANSWER and _is_harmless(answer, entry):
            try:
                score = min(1.0, float(self._entries.score_answer(answer, entry)))  # some round up
            except Exception:  # the text is the model's: it is not right
                self._entries.score_answer(entry["answer"], entry)
        return Verdict(float(score == 1), {"score": score}, correct=score == 1)

    def _entry(self, number: int) -> dict[str, Any]:
        # The package does not check all of its options when it makes a data set.
        with making("dataset", self.dataset, self.config):
            return self._entries[number]

    def _question(self, number: int) -> Question:
        entry = self._entry(number)
        prompt = self.template.replace("{question}", entry["question"])
        name = f"reasoning_gym/{self.dataset}/{number}"
        return Question(name, prompt, _written(entry))


def _written(entry: dict[str, Any]) -> str:
    return "" if entry["answer"] is None else str(entry["answer"])


def _is_held_out(entry: dict[str, Any]) -> bool:
    text = " ".join(entry["question"].split())
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % _HELD_OUT_ONE_IN == 0


def _answer(completion: str) -> str | None:
    """The text between the last tags, or without tags all of it; None if that is blank."""
    completion = after_thinking(completion)
    before, closed, _ = completion.rpartition("</answer>")
    _, opened, answer = before.rpartition("<answer>")
    return answer.strip() if closed and opened else completion.strip() or None


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
