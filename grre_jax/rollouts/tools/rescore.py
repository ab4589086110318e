"""Stores the log-probs of stored completions that a `Scorer` computes under a checkpoint, for data
that has none or for a reference or proximal policy.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts import Group, RolloutReader
from grre_jax.rollouts.schema import STORED_FIELDS
from grre_jax.rollouts.tools.copying import derive
from grre_jax.rollouts.views import read_tokenised
from grre_jax.tasks import Tokenizer

FIELDS = {"behavior": "behavior_logprobs"} | STORED_FIELDS
GROUPS_AT_ONCE = 64  # packed together: enough to fill rows well

Score = Callable[[Sequence[Group], float], Sequence[Float[np.ndarray, " tokens"]]]


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A policy that completions are scored under.

    Args:
        score: (tokenised groups, temperature) to the log-prob of every token of each.
        tokenizer: the policy's.
        vocab_size, max_positions: of the model: a token or a length beyond them cannot be scored.
        dtype: that the log-probs are computed in.
        described: JSON fields of the policy for the copies' history: model, checkpoint, fingerprint
            and so on.
    """

    score: Score
    tokenizer: Tokenizer
    vocab_size: int
    max_positions: int
    dtype: str
    described: dict[str, Any]


def rescore(
    folder: str | Path,
    output: str | Path,
    scorer: Scorer,
    *,
    role: str = "behavior",
    temperature: float | None = None,
    replace: bool = False,
    done: Callable[[int], None] = lambda groups: None,
) -> None:
    """Copies a rollout folder with the log-probs of its completions under a policy.

    All fields of a group are kept except three: tokens, if it has none or another tokenizer's (they
    become the policy's); the sampler's other log-probs, which new behaviour log-probs contradict;
    and the temperature, if one is requested (the former one is stored in `extra`). The data sets'
    `history` gets an entry.

    Args:
        folder: the rollout folder.
        output: the new folder, or one that an interrupted call with the same arguments began.
        scorer: the policy.
        role: a name in FIELDS: whose log-probs they are to be.
        temperature: the logits are divided by it; None takes each group's own.
        replace: overwrite log-probs of that role that groups have already.
        done: called now and then with the number of groups processed since.

    Raises:
        UsageError: the output holds something else.
        DataError: the folder is empty, or naming the group: it has log-probs already, was sampled
            greedily, or cannot be scored by this model.
    """
    source = rollouts.read(folder)
    step = {
        "operation": "rescore",
        "as": role,
        "temperature": temperature or "each group's own",
        "dtype": scorer.dtype,
    } | scorer.described
    own = {"tokenizer": scorer.tokenizer.fingerprint}

    def changed(numbers: range) -> Iterator[Group]:
        for start in range(0, len(numbers), GROUPS_AT_ONCE):
            some = numbers[start : start + GROUPS_AT_ONCE]
            groups = [
                _prepared(source, number, scorer, role, temperature, replace) for number in some
            ]
            for divisor, alike in itertools.groupby(
                groups, lambda group: temperature or group.temperature
            ):
                alike = list(alike)
                scored = zip(alike, scorer.score(alike, divisor), strict=True)
                for group, scores in scored:
                    yield _with(group, scores, scorer.dtype, role, temperature)
            done(len(some))

    derive(source, output, changed, step, own)


def _prepared(
    source: RolloutReader,
    number: int,
    scorer: Scorer,
    role: str,
    temperature: float | None,
    replace: bool,
) -> Group:
    """Returns a group ready to be scored."""
    stored = source[number]
    group = read_tokenised(source, number, scorer.tokenizer)
    who = f"group {group.group_id} of {source.folder}"
    field = FIELDS[role]
    if getattr(stored, field) is not None and not replace:
        raise DataError(
            f"{who} has {field} already: replace them with --replace, or score as another role with"
            " --as"
        )
    lost = stored.behavior_logprobs is not None and group.behavior_logprobs is None
    if role != "behavior" and lost:
        raise DataError(
            f"{who} has log-probs of another tokenizer's tokens, which {role} log-probs of"
            " this policy would lie beside: take a policy with that tokenizer"
        )
    if not (temperature or group.temperature):
        raise DataError(
            f"{who} was sampled greedily (temperature 0), which leaves no log-probs: give the"
            " temperature with --temperature"
        )
    if group.lengths.min() < 1:
        raise DataError(f"{who} has an empty completion: leave it out with grre rollouts filter")
    longest = len(group.prompt_tokens) + int(group.lengths.max())
    largest = max(group.tokens.max(), group.prompt_tokens.max(initial=0))
    if longest > scorer.max_positions or largest >= scorer.vocab_size:
        raise DataError(
            f"{who} has {longest} tokens with its prompt, up to token {largest}, and the model"
            f" takes {scorer.max_positions}, up to token {scorer.vocab_size - 1}: leave the group"
            " out with grre rollouts filter, or take a policy that has its tokens"
        )
    return group


def _with(
    group: Group,
    scores: Float[np.ndarray, " tokens"],
    dtype: str,
    role: str,
    temperature: float | None,
) -> Group:
    changed: dict[str, Any] = {FIELDS[role]: scores}
    if role == "behavior":
        changed |= {"sampling_logprobs": None, "policy_logprobs": None}
        changed["logprob_dtype"] = dtype
        if temperature not in (None, group.temperature):
            changed["temperature"] = temperature
            changed["extra"] = group.extra | {"sampled_temperature": group.temperature}
    return dataclasses.replace(group, **changed)
