"""Chained arithmetic with a calculator: the policy requests the operations and states the result.

The operations of `37+58*19` are worked from left to right. In characters, a turn that ends with `=`
calls the calculator, which takes one operation, and any other turn is the answer:

    37+58*19>37+58=$95>95*19=$1805>1805$

The reward is 1 if the answer is right, else 0. Demonstrations call the calculator; with `flaw` as
the probability they instead repeat the last number at once, which is wrong.

For chat models `tools` declares the function `calculate`, which demonstrations then call in
<tool_call> tags, and `template` words the question.
"""

from __future__ import annotations

import hashlib
import json
import operator
import random
import re
from dataclasses import dataclass
from typing import Annotated

from grre_jax.domains import Record, Seed, Share
from grre_jax.tasks.environments.environment import Step, tool_definition
from grre_jax.tasks.task import Question, check_template
from grre_jax.tasks.tokenizers.characters import CharTokenizer
from grre_jax.tasks.verifiers.final_number import final_number
from grre_jax.tasks.verifiers.function_calls import Call

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
# 20 digits: 9999^5, the largest number that a question works on with.
_CALL = re.compile(r"\s*(-?\d{1,20})\s*([+\-*])\s*(-?\d{1,20})\s*=?\s*")
_HELD_OUT_ONE_IN = 20
CALCULATE = tool_definition(
    "calculate",
    "Works out one addition, subtraction or multiplication of two numbers.",
    {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "such as 12*34"}},
        "required": ["expression"],
    },
)


@dataclass(eq=False, repr=False)
class Calculator(Record):
    """The task; see the module's text.

    Args:
        seed: orders the training stream and chooses the flawed demonstrations.
        operands: numbers in a question, 2 to 6.
        digits: most digits of a number, 1 to 4.
        flaw: probability with which a demonstration is wrong.
        tools: True declares the calculator for chat models.
        template: the question's words, with {expression}.

    Attributes:
        name, version: as rollouts record them.
        tokenizer: characters.
        separator: the text behind each message of the environment.

    Raises:
        UsageError: an option out of its domain.
    """

    name = "calculator"
    version = "1"
    separator = ">"
    trusted_verifier = True
    training_source = "calculator/train"
    evaluation_source = "calculator/held-out"

    tokenizer = CharTokenizer("0123456789+-*=>?$")

    seed: Seed = 0
    operands: Annotated[int, "[2, 6]"] = 3
    digits: Annotated[int, "[1, 4]"] = 2
    flaw: Share = 0.0
    tools: bool = False
    template: str = "{expression}"

    def __post_init__(self):
        super().__post_init__()
        check_template(self.template, "expression")

    def question(self, position: int) -> Question:
        """A question of the training stream."""
        return self._question(f"{self.seed}/{position}", held_out=False)

    def evaluation(self, count: int) -> list[Question]:
        """The first `count` held-out questions, whatever the seed."""
        return [self._question(f"held-out/{number}", held_out=True) for number in range(count)]

    def demonstration(self, question: Question, seed: int) -> list[str]:
        """The turns of a trajectory to imitate, right or, by chance, flawed."""
        steps = _steps(question.question_id.removeprefix("calculator/"))
        if random.Random(f"{question.question_id}/{self.seed}/{seed}").random() < self.flaw:
            return [re.findall(r"\d+", question.question_id)[-1]]
        return [self._call(expression) for expression, _ in steps] + [question.answer]

    def environment(self) -> Calculation:
        """The environment of one question."""
        return Calculation([CALCULATE] if self.tools else None)

    def _call(self, expression: str) -> str:
        if not self.tools:
            return f"{expression}="
        call = json.dumps({"name": "calculate", "arguments": {"expression": expression}})
        return f"<tool_call>\n{call}\n</tool_call>"

    def _question(self, name: str, held_out: bool) -> Question:
        draw = random.Random(f"calculator/{name}")
        while True:
            text = str(draw.randrange(10**self.digits))
            for _ in range(self.operands - 1):
                text += draw.choice("+-*") + str(draw.randrange(10**self.digits))
            digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
            if (digest % _HELD_OUT_ONE_IN == 0) == held_out:
                break
        prompt = self.template.replace("{expression}", text)
        return Question(f"calculator/{text}", prompt, _steps(text)[-1][1])


class Calculation:
    """The environment of one question.

    Args:
        tools: definitions for the chat template, None if calls are texts that end with `=`.
    """

    def __init__(self, tools: list[dict] | None):
        self.tools = tools
        self._answer = ""

    def reset(self, question: Question, seed: int) -> list[dict[str, str]]:
        """Returns the question."""
        self._answer = question.answer
        return [{"role": "user", "content": question.prompt}]

    def step(self, action: str | list[Call]) -> Step:
        """Works out an operation, or judges the answer."""
        if isinstance(action, list):
            return Step("\n".join(map(_called, action)))
        if not self.tools and action.endswith("="):
            return Step(_worked(action))
        right = action == self._answer
        if self.tools:
            right = final_number(action) == int(self._answer)
        return Step(reward=float(right), done=True)


def _steps(text: str) -> list[tuple[str, str]]:
    """The operations of an expression from left to right, each with its result."""
    value, *operations = re.findall(r"[+\-*]?\d+", text)
    steps = []
    for operation in operations:
        call = value + operation
        value = _worked(call)
        steps.append((call, value))
    return steps


def _called(call: Call) -> str:
    expression = call.arguments.get("expression", call.arguments.get("0", ""))
    return _worked(str(expression)) if call.name == "calculate" else "?"


def _worked(text: str) -> str:
    match = _CALL.fullmatch(text)
    if not match:
        return "?"
    left, operation, right = match.groups()
    return str(_OPERATIONS[operation](int(left), int(right)))
