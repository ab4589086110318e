"""The configuration's `objective` section."""

from __future__ import annotations

import dataclasses
from typing import Any

# Whose log-probs stored groups can carry besides the behaviour policy's, and in which field.
STORED_FIELDS = {"reference": "ref_logprobs", "proximal": "prox_logprobs"}


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """The objective that is trained, and where its reference log-probs come from.

    Args:
        name (an algorithm, or FILE.py:FUNCTION): an algorithm of `grre algorithms`, or a loss
            function of your own.
        options (numbers and variants by keyword): options of the algorithm, which `grre
            algorithms NAME` lists: --objective.options.epsilon_low 0.2.
        stored ("reference", "proximal", both or empty): whose log-probs are read from the groups of
            data.path, where `grre rollouts rescore --as` wrote them. Without it the reference is
            the policy that the run started from (after the warm start), and the proximal policy the
            one at the start of each update.
    """

    name: str = "reinforce"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    stored: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "stored", tuple(self.stored))  # a list, where it comes from JSON
        for role in self.stored:
            if role not in STORED_FIELDS:
                raise ValueError(f"stored takes {' and '.join(STORED_FIELDS)}, got {role!r}")

    @property
    def stored_fields(self) -> tuple[str, ...]:
        """The fields of `stored` in rollout groups and batches."""
        return tuple(STORED_FIELDS[role] for role in self.stored)
