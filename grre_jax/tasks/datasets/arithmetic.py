"""Chained one-digit arithmetic modulo ten: the embedded task, which needs no download.

A prompt is `d op d op d op d >`, worked from left to right, every result modulo 10: `3+5*2-1>` is
3+5=8, 8*2=6, 6-1=5. An answer is either the results in the order in which they were worked
(`8,6,5$`, 6 tokens, answers="short") or the equations (`3+5=8,8*2=6,6-1=5$`, 18 tokens,
answers="full"). The reward is 1 when the character right before the first `$` is the right last
digit, else 0; an answer that never reaches `$` gets 0. Guessing is right one time in ten.

**Demonstrations are wrong in one of two ways**, so that a supervised warm start leaves
reinforcement learning something to do. The next step always works on from what was written.

`corruption`: each step's result is, with this probability, replaced by a digit drawn uniformly
from all ten, the right one included. The right digit stays the most likely one: a model that has
learned the distribution is right only sometimes when sampled at temperature 1 (four operands and
0.35: 0.380) and always when decoded greedily. Reinforcement learning then only sharpens it.

`flaw`: each step is, with this probability, written by a wrong rule. Above one half the wrong step
is the most likely one, so greedy decoding is wrong too, and the right rule has to be learned from
reward. The wrong rule is (a + b + 1) mod 10 for a subtraction or a multiplication, additions are
right.

**Held-out questions** are one in twenty of the question space (13,500 of the 270,000 with four
operands), chosen by a hash, whatever the seed: runs of different seeds are evaluated on the same
questions, and none of them trains on one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Bool, Int, UInt32

from grre_jax import random_streams
from grre_jax.domains import Positive, Record, Seed, Share, checked
from grre_jax.random_streams import Purpose
from grre_jax.tasks.task import Question, Verdict
from grre_jax.tasks.tokenizers.characters import CharTokenizer

Row = Int[Any, "batch"]
Rows = Int[Any, "batch columns"]
Bits = UInt32[Any, "batch"]
Step = tuple[Row, Row, Row, Row]  # left operand, operation, right operand, result
# Ids of the tokenizer: digits have their own, then come the other characters.
_PLUS, _MINUS, _TIMES, _EQUALS, _COMMA, _PROMPT_END, _EOS = range(10, 17)
_HELD_OUT_ONE_IN = 20  # divides the number of questions whatever the operands


@dataclass(eq=False, repr=False)
class Arithmetic(Record):
    """The task; the module's text describes its questions and verification.

    Every question, and the corruption of its demonstration, is addressed by (seed, position). The
    methods that end in `_batch` give the same as the others as token arrays, take numpy or jax
    positions and answer in kind, and can be jitted.

    Args:
        seed: orders the training stream and draws the errors of the demonstrations.
        answers: "short" for running results, "full" for equations.
        operands: digits in a question, 2 to 6.
        corruption: probability with which each step of a training demonstration is replaced by a
            uniform digit; 0 is clean.
        flaw: probability with which a step of a training demonstration follows the wrong rule; 0 is
            clean.

    Attributes:
        name: "arithmetic".
        tokenizer: the character tokenizer whose ids the token arrays hold; digit d has id d.
        prompt_length, answer_length: tokens in every prompt, and in every well-formed answer with
            its `$`.
        training_source, evaluation_source: names for provenance.

    Raises:
        UsageError: an option out of its domain.
    """

    name = "arithmetic"
    trusted_verifier = True
    training_source = "arithmetic/train"
    evaluation_source = "arithmetic/held-out"
    tokenizer = CharTokenizer()

    seed: Seed = 0
    answers: Literal["short", "full"] = "short"
    operands: Annotated[int, "[2, 6]"] = 4
    corruption: Share = 0.35
    flaw: Share = 0.0

    def __post_init__(self):
        super().__post_init__()
        self.prompt_length = 2 * self.operands
        self.answer_length = (self.operands - 1) * (2 if self.answers == "short" else 6)

    def question(self, position: int) -> Question:
        """A question of the training stream, with its corrupted demonstration."""
        return self.questions_at([position])[0]

    def questions_at(self, positions: Sequence[int]) -> list[Question]:
        """The questions at positions of the training stream, drawn together: `question` of each."""
        prompts = self.questions_batch(positions)
        return self._as_questions(prompts, self.demonstrations_batch(positions))

    def evaluation(self, count: int) -> list[Question]:
        """The first `count` held-out questions, or all, with clean demonstrations."""
        prompts = self.evaluation_batch(count)
        return self._as_questions(prompts, self._write(self.steps(prompts)))

    def verify(self, question: Question, completion: str) -> Verdict:
        """Reward 1 if the character before the first `$` is the answer's digit, else 0."""
        written, end, _ = completion.partition("$")
        right = bool(end) and written.endswith(question.answer)
        return Verdict(float(right), correct=right)

    def final_answer(self, completion: str) -> str | None:
        """The digit before the first `$` of the completion; None without one."""
        written, end, _ = completion.partition("$")
        return written[-1] if end and written[-1:] in set("0123456789") else None

    # -- as token arrays
    # ------------------------------------------------------------

    def questions_batch(self, positions: Row | list[int]) -> Rows:
        """The prompts at positions of the training stream, as int32 token ids, `prompt_length`
        each.

        Raises:
            UsageError: a position is negative or 2**32 or more (not checked for jax arrays).
        """
        positions = random_streams.check_positions(positions)
        key = random_streams.purpose_key(self.seed, Purpose.QUESTION)
        block, member = random_streams.fold_in(key, positions)
        block = block % np.uint32(self._blocks)
        member = member % np.uint32(_HELD_OUT_ONE_IN - 1)
        return self._prompts(block, member + (member >= self._held_out(block)))

    def demonstrations_batch(self, positions: Row | list[int]) -> Rows:
        """The (corrupted) answers to imitate at positions of the training stream, as int32 token
        ids, `answer_length` each, `$` last.

        Raises:
            UsageError: a position is negative or 2**32 or more (not checked for jax arrays).
        """
        positions = random_streams.check_positions(positions)
        return self._write(self.steps(self.questions_batch(positions), positions))

    def evaluation_batch(self, count: int) -> Rows:
        """The prompts of `evaluation(count)` as int32 token ids."""
        block = _order(self.operands, self._blocks)[: checked("count", Positive, count)]
        return self._prompts(block, self._held_out(block))

    # -- the format
    # ------------------------------------------------------------

    @property
    def _blocks(self) -> int:
        """Blocks of consecutive numbers of questions, each with one that is held out."""
        return 10**self.operands * 3 ** (self.operands - 1) // _HELD_OUT_ONE_IN

    def _held_out(self, block: Bits) -> Bits:
        """The place of each block's held-out question."""
        key = random_streams.purpose_key(self.operands, Purpose.SPLIT)
        return random_streams.fold_in(key, block)[1] % np.uint32(_HELD_OUT_ONE_IN)

    def _prompts(self, block: Bits, member: Bits) -> Rows:
        """Prompts of numbers: base-10 digits, then base-3 operations."""
        xp = block.__array_namespace__()
        index = block * np.uint32(_HELD_OUT_ONE_IN) + member
        columns = []
        for _ in range(self.operands):
            columns += [index % 10, index // 10 % 3 + _PLUS]
            index = index // 30
        columns[-1] = columns[0] * 0 + _PROMPT_END
        return xp.stack(columns, axis=1).astype(np.int32)

    def steps(self, prompts: Rows, positions: Bits | None = None) -> list[Step]:
        """The steps of each prompt; with the errors of a demonstration if its positions are given.

        Args:
            prompts: as of `questions_batch`.
            positions: in the training stream.
        """
        xp = prompts.__array_namespace__()
        if positions is not None:
            flawed, _ = self._drawn(Purpose.FLAW, self.flaw, positions)
            corrupted, digit = self._drawn(Purpose.CORRUPTION, self.corruption, positions)
        steps: list[Step] = []
        value = prompts[:, 0]
        for step in range(self.operands - 1):
            left = value
            operation = prompts[:, 2 * step + 1]
            right = prompts[:, 2 * step + 2]
            other = xp.where(operation == _MINUS, left - right, left * right)
            if positions is not None:
                other = xp.where(flawed[:, step], left + right + 1, other)
            value = xp.where(operation == _PLUS, left + right, other) % 10
            if positions is not None:
                uniform = (digit[:, step] % np.uint32(10)).astype(value.dtype)
                value = xp.where(corrupted[:, step], uniform, value)
            steps.append((left, operation, right, value))
        return steps

    def _drawn(
        self, purpose: Purpose, rate: float, positions: Bits
    ) -> tuple[Bool[Any, "batch steps"], UInt32[Any, "batch steps"]]:
        """True where an error with this probability happens, by step, and random bits beside it."""
        key = random_streams.fold_in(random_streams.purpose_key(self.seed, purpose), positions)
        steps = np.arange(self.operands - 1, dtype=np.uint32)
        steps = positions[:, None] * np.uint32(0) + steps
        chance, bits = random_streams.fold_in(tuple(word[:, None] for word in key), steps)
        return (chance >> np.uint32(8)) < np.uint32(rate * 2**24), bits

    def _write(self, steps: list[Step]) -> Rows:
        columns = []
        constant = steps[0][0] * 0
        for *equation, result in steps:
            if self.answers == "full":
                columns += [*equation, constant + _EQUALS]
            columns += [result, constant + _COMMA]
        columns[-1] = constant + _EOS
        return constant.__array_namespace__().stack(columns, axis=1).astype(np.int32)

    def _as_questions(self, prompts: Rows, demonstrations: Rows) -> list[Question]:
        answers = self.steps(prompts)[-1][-1].tolist()
        texts = map(self.tokenizer.decode, prompts)
        completions = map(self.tokenizer.decode, demonstrations)
        return [
            Question(f"arithmetic/{text[:-1]}", text, str(answer), completion)
            for text, answer, completion in zip(texts, answers, completions, strict=True)
        ]


@lru_cache(maxsize=8)
def _order(operands: int, blocks: int) -> UInt32[np.ndarray, "blocks"]:
    """The blocks in the order of their held-out questions."""
    key = random_streams.purpose_key(operands, Purpose.SPLIT)
    return random_streams.shuffled(key, blocks).astype(np.uint32)
