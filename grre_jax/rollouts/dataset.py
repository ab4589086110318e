"""The groups of rollout folders as a learner takes them: their order and their shares, in tokens of
a tokenizer, within the limits of a run; and as text.

The order is a pure function of (groups, seed, step), computed by Grain, so resuming a run needs one
integer and no buffer.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.reader import RolloutReader
from grre_jax.rollouts.schema import LOGPROB_FIELDS, MESSAGE_FIELDS, Group
from grre_jax.tasks import Question, Tokenizer

# A rollout folder, and numbers of its groups.
Source = tuple[RolloutReader, Sequence[int]]


def _source_seed(seed: int, which: int) -> int:
    """Returns the seed of a source's permutations."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"Data seed {seed} is out of range; give 0 to {2**32 - 1}.")
    # Not seed + which: Grain permutes epoch e by its seed + e, and a source would repeat, an epoch
    # later, the permutations of the one before it.
    return int(np.random.SeedSequence([seed, which]).generate_state(1)[0]) if which else seed


def _epochs(which: int, numbers: Sequence[int], seed: int, shuffle: bool) -> Any:
    """Returns (`which`, number) for the groups of a source, epoch after epoch, as a Grain
    dataset.
    """
    import grain

    epoch = grain.MapDataset.range(len(numbers)).map(lambda index: (which, numbers[index]))
    # In this order the index counts on from epoch to epoch, and Grain permutes each one anew.
    return (epoch.shuffle(seed=seed) if shuffle else epoch).repeat()


class TrainingOrder:
    """The groups that each step trains on: `order[step]` is a list of groups, the same at every
    call.

    Every epoch is a new permutation of the source, and a step may end one epoch and begin the next.
    Of several sources, each has its share of any run of groups, as nearly as whole groups allow,
    and its own epochs.

    Args:
        sources: folders, each with the numbers of its groups.
        seed: seed of the permutations, 0 to 2**32 - 1; of the first source. Those of others are
            drawn from it and the source's number.
        prompts_per_step: groups in each step's list.
        shares: share of each of several sources; they need not add to 1.
        shuffle: False takes every epoch in the source's own order.

    Raises:
        UsageError: a seed out of range.
        DataError: a source has no groups.

    Examples:
        Four groups, two per step:

        >>> from grre_jax import rollouts
        >>> groups = [
        ...     rollouts.Group(group_id=name, prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        ...     for name in "abcd"
        ... ]
        >>> _ = rollouts.write("my_rollouts", groups, writer="me")
        >>> reader = rollouts.read("my_rollouts")
        >>> sources = [(reader, range(len(reader)))]
        >>> order = rollouts.TrainingOrder(sources, seed=0, prompts_per_step=2)
        >>> sorted(group.group_id for step in (0, 1) for group in order[step])
        ['a', 'b', 'c', 'd']
    """

    def __init__(
        self,
        sources: Sequence[Source],
        seed: int,
        prompts_per_step: int,
        *,
        shares: Sequence[float] = (1.0,),
        shuffle: bool = True,
    ) -> None:
        import grain

        self._readers = [reader for reader, _ in sources]
        for reader, numbers in sources:
            if not len(numbers):
                raise DataError(
                    f"No group of {reader.folder} is selected, of {len(reader)}; sample some with"
                    " `grre train`, or use `grre rollouts import`."
                )
        numbered = enumerate(numbers for _, numbers in sources)
        streams = [_epochs(i, numbers, _source_seed(seed, i), shuffle) for i, numbers in numbered]
        stream = streams[0] if len(streams) == 1 else grain.MapDataset.mix(streams, list(shares))
        self._steps: Any = stream.batch(prompts_per_step, drop_remainder=True, batch_fn=list)

    def indices(self, step: int) -> list[tuple[int, int]]:
        """Returns the groups of a step without reading them.

        Args:
            step: from 0.

        Returns:
            (number of the source, the group's number in its folder) per group.
        """
        return self._steps[step]

    def __getitem__(self, step: int) -> list[Group]:
        """Returns the groups of a step, from 0.

        Raises:
            CorruptShard: a group cannot be read as it was written.
        """
        return [self._readers[which][number] for which, number in self.indices(step)]


def read_tokenised(reader: RolloutReader, index: int, tokenizer: Tokenizer) -> Group:
    """Returns a group of a folder in the tokenizer's own tokens.

    A group without tokens, and one whose data set names another tokenizer, is tokenised from its
    text; it then has no log-probs, as they belonged to other tokens. Tokens of a data set that
    names no tokenizer are taken as this tokenizer's.

    Args:
        reader: the folder.
        index: the group's number there.
        tokenizer: the policy's.

    Raises:
        DataError: the group cannot be tokenised from its text, or cannot be read.
    """
    group = reader[index]
    made_with = reader.locate(index)[0].metadata.get("tokenizer")
    foreign = made_with is not None and made_with != tokenizer.fingerprint
    return tokenised(group, tokenizer) if foreign or not len(group.tokens) else group


def check_limits(group: Group, max_prompt_tokens: int, max_new_tokens: int) -> None:
    """Refuses a tokenised group that is too long or has an empty prompt or completion.

    Args:
        group: with tokens.
        max_prompt_tokens: largest number of prompt tokens.
        max_new_tokens: largest number of tokens of a completion.

    Raises:
        DataError: the prompt or a completion is over its limit or empty.
    """
    who = f"group {group.group_id} ({group.question_id})"
    if not within_limits(group, max_prompt_tokens, max_new_tokens):
        raise DataError(
            f"{who} has {len(group.prompt_tokens)} prompt tokens and completions of up to"
            f" {group.lengths.max()}, over sampling.max_prompt_tokens = {max_prompt_tokens} or"
            f" sampling.max_new_tokens = {max_new_tokens}: raise the limit, or leave such groups"
            " out with --data.drop-over-limit true"
        )
    # Without a prompt nothing predicts a completion's first token.
    for name, tokens in (("prompt", len(group.prompt_tokens)), ("completion", group.lengths.min())):
        if tokens < 1:
            raise DataError(f"{who} has an empty {name}: remove it from the folder's source")


def within_limits(group: Group, max_prompt_tokens: int, max_new_tokens: int) -> bool:
    """True if the prompt and every completion of a tokenised group are within the limits."""
    longest = int(group.lengths.max())
    return len(group.prompt_tokens) <= max_prompt_tokens and longest <= max_new_tokens


def pieces(group: Group, k: int) -> list[str]:
    """Returns the text of completion `k`; of a trajectory its turns with their rewards, and the
    environment's texts between them.
    """
    text = group.texts[k]
    spans = group.turns(k, "turn_texts")
    if not spans:
        return [text]
    first = int(group.turn_counts[:k].sum())
    parts = []
    last = 0
    for turn, (start, end) in enumerate(spans):
        reward = group.turn_rewards[first + turn]
        gained = f" (reward {reward:g})" if reward else ""
        parts.append(f"environment: {text[last:start]}")
        parts.append(f"turn {turn}{gained}: {text[start:end]}")
        last = end
    parts.append(f"environment: {text[last:]}")
    return [piece for piece in parts if piece != "environment: "]


def tokenised(group: Group, tokenizer: Tokenizer) -> Group:
    """Returns the group in tokens of its texts, without log-probs and routes.

    Raises:
        DataError: its texts do not determine its tokens: some of them are observations, or were
            made of several chat messages; or a text cannot be tokenised.
    """
    who = f"group {group.group_id} ({group.question_id})"
    several = (group.turn_counts > 1).any() or not group.extra.keys().isdisjoint(MESSAGE_FIELDS)
    if several or not group.mask.all():
        raise DataError(
            f"{who} has observations, or several turns or chat messages, which its text does not"
            " mark, and its tokens are another tokenizer's: import its source again with this"
            " policy's (grre rollouts import --tokenizer FOLDER, with --system-prompt and"
            " --template-arguments as the run's model.*)"
        )
    if mark := getattr(tokenizer, "mark_in", lambda _: "")(group.prompt):
        raise DataError(
            f"the prompt of {who} holds {mark!r}, so a chat template was applied to it, and"
            " would be applied again: import the messages (grre rollouts import --tokenizer"
            " FOLDER), or leave the group out with grre rollouts filter"
        )
    try:
        # A completion that was cut at a token limit did not end: the policy wrote no end token.
        completions = [
            np.asarray(tokenizer.encode_completion(text), np.int32)[
                : -1 if reason == "length" else None
            ]
            for text, reason in zip(group.texts, group.finish_reasons, strict=True)
        ]
        prompt_ids = tokenizer.encode_prompt(
            Question(group.question_id, group.prompt, group.answer)
        )
    except UsageError as error:
        raise DataError(f"{who} cannot be tokenised: {error}") from error
    absent = dict.fromkeys(("mask", "token_versions", "routes", *LOGPROB_FIELDS))
    ends = [end for ids in completions for end in (0, len(ids))]  # of a trajectory's one turn
    return dataclasses.replace(
        group,
        prompt_tokens=np.asarray(prompt_ids, np.int32),
        tokens=np.concatenate(completions),
        lengths=[len(c) for c in completions],
        turn_tokens=ends if len(group.turn_counts) else None,
        **absent,
    )
