"""What a training step trains on: groups read back from rollout shards, whoever wrote them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from grre_jax import objectives, rollouts
from grre_jax.config import Config, parse_range
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import Group
from grre_jax.tasks import Question, Tokenizer
from grre_jax.training import setup
from grre_jax.training.regime import Regime


class Batches(Protocol):
    """Random access to a run's data by training step, so that a resumed run needs no more than its step."""

    def groups(self, step: int) -> list[Group]:
        """The tokenised groups that step `step` trains on."""
        ...

    def staleness(self, step: int) -> float:
        """How many updates old the policy that generated them is; NaN if another model did."""
        ...


@dataclasses.dataclass(frozen=True)
class SampledBatches:
    """Groups that the run's own explorer sampled: batch s holds the places s*G to (s+1)*G - 1 of the prompt stream.

    Args:
        reader: of the run's rollout folder.
        regime: says which policy version sampled a batch.
        groups_per_step: G.
    """

    reader: rollouts.RolloutReader
    regime: Regime
    groups_per_step: int

    def positions(self, step: int) -> range:
        """Places in the prompt stream of a step's groups."""
        return range(step * self.groups_per_step, (step + 1) * self.groups_per_step)

    def groups(self, step: int) -> list[Group]:
        """As `Batches.groups`; DataError if a group is not in the folder."""
        return [self.reader.at(position, self.regime.version(step)) for position in self.positions(step)]

    def staleness(self, step: int) -> float:
        """As `Batches.staleness`."""
        return float(self.regime.staleness(step))


class StoredBatches:
    """Groups of an existing rollout folder, in an order drawn anew each epoch.

    Args:
        reader: of the folder.
        tokenizer: of the policy; text-only groups, and groups of another tokenizer, are tokenised with it.
        numbers: which of the folder's groups.
        groups_per_step: groups a batch.
        seed: of the order.
        max_prompt_tokens, max_new_tokens: limits; a longer group is an error that names it.

    Raises:
        DataError: no group is left to train on, or there are fewer than one batch.
    """

    def __init__(
        self,
        reader: rollouts.RolloutReader | TokenisedReader,
        tokenizer: Tokenizer,
        numbers: Sequence[int],
        groups_per_step: int,
        seed: int,
        max_prompt_tokens: int,
        max_new_tokens: int,
    ):
        self._tokenizer, self._limits = tokenizer, (max_prompt_tokens, max_new_tokens)
        source = rollouts.GroupSource(reader, numbers)
        if len(source) < groups_per_step:
            raise DataError(
                f"{reader.folder} has {len(source)} groups to train on, fewer than one step's {groups_per_step}: lower training.groups_per_step or widen data.questions"
            )
        self._source = source
        self._order = rollouts.training_order(source, seed=seed, groups_per_step=groups_per_step)

    def groups(self, step: int) -> list[Group]:
        """As `Batches.groups`."""
        return [tokenised(group, self._tokenizer, *self._limits) for group in self._order[step]]

    def staleness(self, step: int) -> float:
        """As `Batches.staleness`: unknown."""
        return float("nan")


class TokenisedReader:
    """A rollout folder as the policy reads it: every group in the policy's own tokens.

    A group that holds text only, and one whose data set says that another tokenizer made its tokens, is tokenised from its text; it then has no log-probs, as
    they belonged to other tokens. Tokens of a data set that names no tokenizer are taken for the policy's own.

    Args:
        reader: the folder.
        tokenizer: the policy's.
    """

    def __init__(self, reader: rollouts.RolloutReader, tokenizer: Tokenizer):
        self.folder, self.contains = reader.folder, reader.contains
        self._reader, self._tokenizer = reader, tokenizer

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, number: int) -> Group:
        group, made_with = self._reader[number], self._reader.locate(number)[0].metadata.get("tokenizer")
        foreign = made_with is not None and made_with != self._tokenizer.fingerprint
        return _from_text(group, self._tokenizer) if foreign else _in_tokens(group, self._tokenizer)


def tokenised(group: Group, tokenizer: Tokenizer, max_prompt_tokens: int, max_new_tokens: int) -> Group:
    """The group in the policy's own tokens: as it is if it has tokens, else made from its text (and then without log-probs).

    Raises:
        DataError: naming the group, if its prompt or a completion is over its limit, or a completion is empty.
    """
    group = _in_tokens(group, tokenizer)
    who = f"group {group.group_id} ({group.question_id})"
    fix = "raise the limit, or leave such groups out with --data.drop-over-limit true"
    if len(group.prompt_tokens) > max_prompt_tokens:
        raise DataError(
            f"the prompt of {who} has {len(group.prompt_tokens)} tokens, over sampling.max_prompt_tokens = {max_prompt_tokens}: {fix}"
        )
    if group.lengths.max() > max_new_tokens:
        worst = int(group.lengths.argmax())
        raise DataError(
            f"completion {worst} of {who} has {group.lengths[worst]} tokens, over sampling.max_new_tokens = {max_new_tokens}: {fix}"
        )
    if group.lengths.min() < 1:
        raise DataError(f"completion {int(group.lengths.argmin())} of {who} is empty: remove it from the folder's source")
    return group


def within_limits(group: Group, tokenizer: Tokenizer, max_prompt_tokens: int, max_new_tokens: int) -> bool:
    """Whether the group's prompt and completions, in the policy's own tokens, are within the limits."""
    group = _in_tokens(group, tokenizer)
    return len(group.prompt_tokens) <= max_prompt_tokens and int(group.lengths.max()) <= max_new_tokens


def _in_tokens(group: Group, tokenizer: Tokenizer) -> Group:
    return group if len(group.tokens) else _from_text(group, tokenizer)


def _from_text(group: Group, tokenizer: Tokenizer) -> Group:
    completions = [np.asarray(tokenizer.encode_completion(text), np.int32) for text in group.texts]
    prompt = np.asarray(tokenizer.encode_prompt(Question(group.question_id, group.prompt, group.answer)), np.int32)
    absent = dict.fromkeys(("mask", "behavior_logprobs", "sampling_logprobs", "policy_logprobs"))
    return dataclasses.replace(
        group, prompt_tokens=prompt, tokens=np.concatenate(completions), lengths=[len(c) for c in completions], **absent
    )


def stored_batches(parts: setup.Parts, folder: rollouts.RolloutReader) -> StoredBatches:
    """The batches of an existing rollout folder, as the run's `data` section selects them.

    Raises:
        UsageError: data.questions is no range, or overlaps with the questions held out for ranking.
        DataError: nothing is left to train on, or a group lacks the behaviour log-probs that the objective needs, or was sampled at another temperature.
    """
    config, reader = parts.config, TokenisedReader(folder, parts.tokenizer)
    chosen = parse_range(config.data.questions, "data.questions", len(reader))
    if config.evaluation.ranking_questions:
        apart = parse_range(config.evaluation.ranking_questions, "evaluation.ranking_questions", len(reader))
        if set(chosen) & set(apart):
            raise UsageError(
                f"data.questions = {config.data.questions!r} and evaluation.ranking_questions = {config.evaluation.ranking_questions!r} overlap: hold out other groups"
            )
    numbers = []
    for number in chosen:
        group = reader[number]
        wanted = group.has_signal or not config.data.drop_no_signal
        if wanted and (not config.data.drop_over_limit or within_limits(group, parts.tokenizer, *limits(config))):
            _check_ratio(parts, group, reader.folder)
            numbers.append(number)
    return StoredBatches(reader, parts.tokenizer, numbers, config.training.groups_per_step, config.seed, *limits(config))


def limits(config: Config) -> tuple[int, int]:
    """(sampling.max_prompt_tokens, sampling.max_new_tokens) of a configuration."""
    return config.sampling.max_prompt_tokens, config.sampling.max_new_tokens


def _check_ratio(parts: setup.Parts, group: Group, folder: Path) -> None:
    """An objective with a ratio takes like with like: log-probs that exist, at the temperature that training takes its own at."""
    if "old_logprobs" not in parts.objective.requires:
        return
    if group.behavior_logprobs is None:
        free = [row.name for row in objectives.algorithm_table() if not row.requires]
        raise DataError(
            f"group {group.group_id} of {folder} has no behaviour log-probs, and objective {parts.objective.name} needs them: "
            f"choose one that does not ({', '.join(free)}) with --objective.name"
        )
    temperature = parts.config.sampling.temperature
    if group.temperature != temperature:
        raise DataError(
            f"group {group.group_id} of {folder} was sampled at temperature {group.temperature:g} and sampling.temperature is {temperature:g}: "
            f"a ratio would compare two distributions; set --sampling.temperature {group.temperature:g}"
        )


def training_contents(parts: setup.Parts) -> set[str]:
    """Benchmark splits that the policy has seen or will see: those of its own past, and of the shards or the task it now learns from."""
    contents = setup.model_contents(parts.config)
    if parts.config.data.path:
        return contents | set(rollouts.read(parts.config.data.path).contains)
    return contents | set(parts.provenance()["contains"])
