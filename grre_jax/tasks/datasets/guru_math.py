"""Guru-Math: the mathematics of LLM360's Guru (Cheng et al., "Revisiting Reinforcement Learning
for LLM Reasoning from A Cross-Domain Perspective", arXiv 2506.14965).

A record is a row of train/math__combined_54.4k.parquet: {"data_source", "prompt": [{"role",
"content"}], "ability", "reward_model": {"ground_truth", "style"}, "extra_info"}, verl's format, so
any other mathematics in that format can be read too. The prompt already says how to answer. Its
messages become the user's turn of the model's chat template, a system message before it.
"""

import contextlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grre_jax.json_files import require
from grre_jax.tasks.datasets.competition_math import Mathematics
from grre_jax.tasks.datasets.questions import texts
from grre_jax.tasks.datasets.stored_questions import Entry
from grre_jax.tasks.datasets.stored_records import Record


@dataclass(eq=False, repr=False)
class GuruMath(Mathematics):
    """The task; see the module's text. Its options are those of `Mathematics`.

    Attributes:
        name: "guru_math".
    """

    name = "guru_math"
    hub = ("LLM360/guru-RL-92k", "train/math__combined_54.4k.parquet")

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        ability = record.get("ability")
        # Guru's folders hold its other domains too.
        if isinstance(ability, str) and ability and "math" not in ability.lower():
            self._leave_out(where, f"its ability is {ability!r}, not mathematics")
            return []
        said = texts(record.get("prompt"), where, "prompt")
        text = "\n\n".join(part.strip() for part in said)
        answer = _answer(record.get("reward_model"), where)
        if not answer:
            self._leave_out(where, "its ground_truth is empty")
            return []
        return [self._entry(split, text, answer)]


def _answer(reward_model: Any, where: str) -> str:
    truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    listed = truth
    with contextlib.suppress(ValueError, RecursionError, TypeError):
        listed = json.loads(truth)  # some rows hold a JSON list of one answer
    if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], str):
        truth = listed[0]
    if type(truth) is int or (type(truth) is float and math.isfinite(truth)):
        truth = repr(truth)
    return require(truth, str, where, "reward_model.ground_truth").strip()
