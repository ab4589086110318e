"""ToolACE: conversations in which an assistant calls functions (Liu et al., "ToolACE: Winning
the Points of LLM Function Calling", arXiv 2409.00920).

A record of data.json is {"system": what the assistant may call and how, "conversations": [{"from":
"user", "assistant" or "tool", "value"}]}, where the assistant's calls are written
`[Get Weather(city="Oslo"), f()]`. Every turn of the assistant's that calls is a question: what
comes before it is the prompt, the calls that it makes the answer. The prompt is one user turn of
the model's chat template: the system text, then the conversation, its turns named where there are
several.

A whole conversation is held out or none of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from grre_jax.json_files import require
from grre_jax.tasks.datasets.stored_questions import Entry, Record, StoredQuestions, digest
from grre_jax.tasks.verifiers.function_calls import NotCalls, read_calls, verify_calls

_Role = Literal["user", "assistant", "tool"]
_ROLES = {"user": "User", "assistant": "Assistant", "tool": "Tool"}


@dataclass(eq=False, repr=False)
class ToolACE(StoredQuestions):
    """The task; see the module's text.

    Attributes:
        name: "toolace".
    """

    name = "toolace"
    trusted_verifier = True
    hub = ("Team-ACE/ToolACE", None)

    verify = staticmethod(verify_calls)

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        system = require(record.get("system"), str, where, "system")
        name = "conversations"
        turns = list(require(record.get(name), tuple[dict[str, Any], ...], where, name))
        for number, turn in enumerate(turns):
            require(turn.get("from"), _Role, where, f"{name}[{number}].from")
            require(turn.get("value"), str, where, f"{name}[{number}].value")
        family = digest(system + str(turns[:1]))
        entries = []
        for place, turn in enumerate(turns):
            if turn["from"] != "assistant":
                continue
            answer = turn["value"].strip()
            try:
                calls = read_calls(answer)
            except NotCalls as error:
                self._leave_out(where, f"the calls of a turn cannot be read ({error})")
                continue
            if calls:
                prompt = _prompt(system, turns[:place])
                entries.append(self._entry(split, prompt, answer, answer, family))
        return entries


def _prompt(system: str, turns: list[dict[str, Any]]) -> str:
    if len(turns) == 1:
        return f"{system.strip()}\n\n{turns[0]['value'].strip()}"
    dialogue = "\n\n".join(f"{_ROLES[turn['from']]}: {turn['value'].strip()}" for turn in turns)
    return f"{system.strip()}\n\n{dialogue}\n\nGive the assistant's next turn."
