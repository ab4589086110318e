"""Turns of imported trajectories: completions with tokens that no policy generated."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from grre_jax.rollouts.tools.exchange.sources import Line

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer


def turn_fields(
    parts: list[Line],
    fields: dict[str, Any],
    given: list[list[float]] | None,
    tokenizer: "Tokenizer | None",
) -> dict[str, Any]:
    """Returns the fields of a group that say where its turns are and what each earned.

    Args:
        parts: its completions.
        fields: of the group, with texts, rewards, tokens and mask.
        given: rewards of the turns of each completion, if the row has them.
        tokenizer: made the tokens; without it the turns' places in the texts are unknown.

    Returns:
        The fields; none for a group without observations or a tokenizer. A completion without
            rewards by turn has its reward in the last turn.

    Raises:
        DataError: there are rewards of turns whose tokens or places in the text are unknown, or not
            one for each turn.
    """
    tokens, mask = fields["tokens"], fields["mask"]
    if given is None and (tokenizer is None or tokens is None or mask is None or all(mask)):
        return {}
    if tokens is None or tokenizer is None:
        parts[0].fail(
            "turn_rewards",
            "needs the tokens of the turns: give messages, or tokens with a mask, and the folder of"
            " the policy's tokenizer with --tokenizer",
        )
    spans, characters, rewards, start = [], [], [], 0
    for k, length in enumerate(fields["lengths"]):
        ids = tokens[start : start + length]
        written = [1] * length if mask is None else mask[start : start + length]
        turns, text = _spans(ids, written, tokenizer.eos_ids), fields["texts"][k]
        if turns != [(0, length)] and tokenizer.decode(ids) != text:
            if given is None:
                return {}
            parts[k].fail("text", "is not the text of the tokens; correct it, or leave it out")
        spans.append(turns)
        ends = [end for turn in turns for end in turn]
        whole = [0, len(text)] if turns == [(0, length)] else None
        characters += whole or [len(tokenizer.decode(ids[:end])) for end in ends]
        said = [] if given is None else given[k]
        rewards += _rewards(parts[k], said, len(turns), fields["rewards"][k])
        start += length
    return {
        "turn_counts": [len(turns) for turns in spans],
        "turn_tokens": [end for turns in spans for turn in turns for end in turn],
        "turn_texts": characters,
        "turn_rewards": rewards,
    }


def _spans(ids: list[int], mask: list[int], ends: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns start and end of each turn: tokens of the policy's in a row, up to an end token."""
    written = np.asarray(mask, bool)
    before = np.concatenate([[False], (written & ~np.isin(ids, ends))[:-1]])
    starts = np.flatnonzero(written & ~before)
    follows = np.concatenate([(written & before)[1:], [False]])
    stops = np.flatnonzero(written & ~follows) + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _rewards(part: Line, given: list[float], turns: int, total: float) -> list[float]:
    """Returns the rewards of a completion's turns: without one for the last turn, or for any, the
    last has the rest of the completion's reward, 0 if that is unknown.
    """
    given = given or [0.0] * (turns - 1)
    if turns and len(given) == turns - 1:
        return [*given, 0.0 if math.isnan(total) else total - sum(given)]
    if len(given) != turns:
        part.fail(
            "turn_rewards",
            f"has {len(given)} values, and the policy's turns are {turns}; give one for each turn,"
            " or for each but the last, which then has the rest of the reward",
        )
    return given
