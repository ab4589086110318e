"""Guru-Math: the mathematics of LLM360's Guru (Cheng et al., "Revisiting Reinforcement Learning
for LLM Reasoning from A Cross-Domain Perspective", arXiv 2506.14965).

A record is a row of train/math__combined_54.4k.parquet: {"data_source", "prompt": [{"role",
"content"}], "ability", "reward_model": {"ground_truth", "style"}, "extra_info"}, verl's format, so
any other mathematics in that format can be read too. The prompt already has the instructions. Its
messages become the user's turn of the model's chat template, a system message before it.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from grre_jax.json_files import require
from grre_jax.tasks.datasets.competition_math import Mathematics
from grre_jax.tasks.datasets.questions import plain_messages
from grre_jax.tasks.datasets.stored_questions import Entry, Record


@dataclass(eq=False, repr=False)
class GuruMath(Mathematics):
    """The task; see the module's text. Its options are those of `Mathematics`.

    Attributes:
        name: "guru_math".
    """

    name = "guru_math"
    hub = ("LLM360/guru-RL-92k", "train/math__combined_54.4k.parquet")

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        messages = plain_messages(record.get("prompt"), where, "prompt")
        text = "\n\n".join(message["content"].strip() for message in messages)
        model = require(record.get("reward_model"), dict, where, "reward_model")
        truth = model.get("ground_truth")
        with contextlib.suppress(ValueError, RecursionError):
            match json.loads(truth) if isinstance(truth, str) else truth:
                case [str(only)]:  # some rows hold a JSON list of one answer
                    truth = only
        truth = require(truth, str | int | float, where, "reward_model.ground_truth")
        answer = str(truth).strip()
        if not answer:
            self._leave_out(where, "its ground_truth is empty")
            return []
        return [self._entry(split, text, answer)]
