"""Chained arithmetic with a calculator: the policy requests the operations and states the result.

The operations of `37+58*19` are worked from left to right. In characters, a turn that ends with `=`
calls the calculator, which takes one operation, and any other turn is the answer:
`37+58*19>37+58=$95>95*19=$1805>1805$`. The reward is 1 if the answer is right, else 0.
Demonstrations call the calculator; with `flaw` as the probability they instead repeat the last
number at once, which is wrong.

For chat models `tools` declares the function `calculate`, which demonstrations then call in
<tool_call> tags, and `template` words the question.

    grre train configs/agent_calculator.py
"""

import hashlib
import json
import operator
import random
import re
from dataclasses import dataclass

from grre_jax import tasks
from grre_jax.tasks.environments import Step
from grre_jax.tasks.verifiers.final_number import final_number

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
# 20 digits: 9999^5, the largest number that a question works on with.
CALL = re.compile(r"\s*(-?\d{1,20})\s*([+\-*])\s*(-?\d{1,20})\s*=?\s*")
HELD_OUT_ONE_IN = 20
CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Works out one addition, subtraction or multiplication of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "such as 12*34"}},
            "required": ["expression"],
        },
    },
}


@dataclass
class Calculator:
    """The task: `operands` numbers of at most `digits` digits; `seed` orders the training stream
    and chooses the flawed demonstrations.
    """

    name = "calculator"
    version = "1"
    separator = ">"  # behind each message of the environment
    trusted_verifier = True  # steps in the run's own process
    training_source = "calculator/train"
    evaluation_source = "calculator/held-out"
    tokenizer = tasks.CharTokenizer("0123456789+-*=>?$")

    seed: int = 0
    operands: int = 3
    digits: int = 2
    flaw: float = 0.0
    tools: bool = False
    template: str = "{expression}"

    def question(self, position):
        """A question of the training stream."""
        return self.drawn(f"{self.seed}/{position}", held_out=False)

    def evaluation(self, count):
        """The first `count` held-out questions, whatever the seed."""
        return [self.drawn(f"held-out/{number}", held_out=True) for number in range(count)]

    def demonstration(self, question, seed):
        """The turns of a trajectory to imitate, right or, by chance, flawed."""
        expression = question.question_id.removeprefix("calculator/")
        if random.Random(f"{question.question_id}/{self.seed}/{seed}").random() < self.flaw:
            return [re.findall(r"\d+", expression)[-1]]
        return [self.call(operation) for operation, _ in steps(expression)] + [question.answer]

    def environment(self):
        """The environment of one question."""
        return Calculation([CALCULATE] if self.tools else None)

    def call(self, expression):
        """What the policy writes to have an operation worked out."""
        if not self.tools:
            return f"{expression}="
        call = json.dumps({"name": "calculate", "arguments": {"expression": expression}})
        return f"<tool_call>\n{call}\n</tool_call>"

    def drawn(self, name, held_out):
        """The question of a name: the first drawn that is on the right side of the split."""
        draw = random.Random(f"calculator/{name}")
        while True:
            text = str(draw.randrange(10**self.digits))
            for _ in range(self.operands - 1):
                text += draw.choice("+-*") + str(draw.randrange(10**self.digits))
            digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
            if (digest % HELD_OUT_ONE_IN == 0) == held_out:
                break
        prompt = self.template.replace("{expression}", text)
        return tasks.Question(f"calculator/{text}", prompt, steps(text)[-1][1])


class Calculation:
    """The environment of one question; without `tools` calls are texts that end with `=`."""

    def __init__(self, tools):
        self.tools = tools  # definitions for the chat template

    def reset(self, question, seed):
        """Returns the question."""
        self.answer = question.answer
        return [{"role": "user", "content": question.prompt}]

    def step(self, action):
        """Works out an operation, or judges the answer; `action` is a text or a list of calls."""
        if isinstance(action, list):
            return Step("\n".join(map(called, action)))
        if self.tools:
            return Step(reward=float(final_number(action) == int(self.answer)), done=True)
        if action.endswith("="):
            return Step(worked(action))
        return Step(reward=float(action == self.answer), done=True)


def steps(text):
    """The operations of an expression from left to right, each with its result."""
    value, *operations = re.findall(r"[+\-*]?\d+", text)
    found = []
    for operation in operations:
        call = value + operation
        value = worked(call)
        found.append((call, value))
    return found


def called(call):
    """The answer to a call."""
    expression = call.arguments.get("expression", call.arguments.get("0", ""))
    return worked(str(expression)) if call.name == "calculate" else "?"


def worked(text):
    """The result of one operation as text; "?" for anything else."""
    if not (match := CALL.fullmatch(text)):
        return "?"
    left, operation, right = match.groups()
    return str(OPERATIONS[operation](int(left), int(right)))
