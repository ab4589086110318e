"""What a training step trains on: groups read back from rollout shards, whoever wrote them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence, Sized
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from grre_jax import rollouts
from grre_jax.config import Config, parse_range
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import Group
from grre_jax.rollouts.schema import LOGPROB_FIELDS, MESSAGE_FIELDS
from grre_jax.tasks import Question, Tokenizer
from grre_jax.training import refill, setup
from grre_jax.training.data_checks import HeldOut, check_group, check_stored, demonstrates, warn_of_leak
from grre_jax.training.regime import Regime
from grre_jax.training.schedule import Schedule
from grre_jax.training.stored_folders import Beginning, open_stored


class Batches(Protocol):
    """Random access to a run's data by training step, so that a resumed run needs no more than its step."""

    def groups(self, step: int) -> list[Group]:
        """The tokenised groups that step `step` trains on."""
        ...

    def ready(self, step: int) -> bool:
        """Whether these groups are there and may be read before the steps before it are done."""
        ...

    def ages(self, step: int) -> Float[np.ndarray, " groups"]:
        """How many updates old the policy of each of them is; NaN if another run's did."""
        ...

    def staleness(self, step: int) -> float:
        """The mean of the ages that are known; NaN if none is."""
        ...


def mean_age(ages: Float[np.ndarray, " groups"]) -> float:
    """The mean of the ages that are known; NaN if none is."""
    known = ages[~np.isnan(ages)]
    return float(known.mean()) if known.size else float("nan")


@dataclasses.dataclass(frozen=True)
class SampledBatches:
    """Groups that the run's own explorer sampled, as its schedule says: without replay, batch s holds the places s*G to (s+1)*G - 1 of the prompt stream.

    Args:
        reader: of the run's rollout folder.
        regime: says which policy version sampled a batch.
        groups_per_step: G.
        seed: the run's; replay is drawn under it.
        max_staleness: of replayed groups, as in `Schedule`.
        rounds: of dynamic sampling; 0 for none.
    """

    reader: rollouts.RolloutReader
    regime: Regime
    groups_per_step: int
    seed: int = 0
    max_staleness: int = -1
    rounds: int = 0

    @cached_property
    def schedule(self) -> Schedule:
        """What each step trains on."""
        return Schedule(self.regime, self.groups_per_step, self.seed, self.max_staleness)

    def positions(self, step: int) -> range:
        """Places in the prompt stream of a step's fresh groups."""
        return self.schedule(step).fresh

    def groups(self, step: int) -> list[Group]:
        """As `Batches.groups`, without the places that dynamic sampling found no signal for; DataError if a group is not in the folder."""
        return [group for group, _ in self._trained(step)]

    def ready(self, step: int) -> bool:
        """As `Batches.ready`. With dynamic sampling what a step trains on is known only once its groups are read: they are not read ahead."""
        return not self.rounds and all(self.reader.find(place, version) is not None for place, version in self.schedule(step).places)

    def ages(self, step: int) -> Float[np.ndarray, " groups"]:
        """As `Batches.ages`."""
        plan = self.schedule(step)
        return plan.ages.astype(float) if not self.rounds else np.array([step - version for _, version in self._trained(step)], float)

    def staleness(self, step: int) -> float:
        """As `Batches.staleness`."""
        return mean_age(self.ages(step))

    def _trained(self, step: int) -> list[tuple[Group, int]]:
        """The step's groups with the versions that sampled them. The last answer is kept, for one step asks several times."""
        if self._last.get("step") != step:
            picked = [(self._chosen(place, version), version) for place, version in self.schedule(step).places]
            self._last.update(step=step, found=[(group, version) for group, version in picked if group is not None])
        return self._last["found"]

    def _chosen(self, place: int, version: int) -> Group | None:
        try:
            return refill.chosen(self.reader, place, version, self.rounds) if self.rounds else self.reader.at(place, version)
        except LookupError as error:
            raise DataError(f"Rollout folder {self.reader.folder} holds {error}, which dynamic sampling should have sampled.") from error

    @cached_property
    def _last(self) -> dict[str, Any]:
        return {}


class StoredBatches:
    """Groups of an existing rollout folder, in an order drawn anew each epoch.

    Args:
        reader: of the folder.
        tokenizer: of the policy; text-only groups, and groups of another tokenizer, are tokenised with it.
        numbers: which of the folder's groups.
        groups_per_step: groups a batch.
        seed: of the order.
        max_prompt_tokens, max_new_tokens: limits; a longer group is an error that names it.
        options: `shuffle` and `uses` of `rollouts.TrainingOrder`.

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
        **options: Any,
    ):
        self._tokenizer, self._limits = tokenizer, (max_prompt_tokens, max_new_tokens)
        source = rollouts.GroupSource(reader, numbers)
        if len(source) < groups_per_step:
            raise DataError(
                f"{reader.folder} has {len(source)} groups to train on, fewer than one step's {groups_per_step}: lower training.groups_per_step or widen data.questions"
            )
        self._source = source
        self._order = rollouts.training_order(source, seed=seed, groups_per_step=groups_per_step, **options)

    def groups(self, step: int) -> list[Group]:
        """As `Batches.groups`."""
        return [tokenised(group, self._tokenizer, *self._limits) for group in self._order[step]]

    def __len__(self) -> int:
        """Steps there are."""
        return len(self._order)

    def ready(self, step: int) -> bool:
        """As `Batches.ready`: always."""
        return True

    def ages(self, step: int) -> Float[np.ndarray, " groups"]:
        """As `Batches.ages`: unknown."""
        return np.full(self._order.groups_per_step, np.nan)

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

    def __init__(self, reader: rollouts.RolloutReader | Beginning, tokenizer: Tokenizer):
        self.folder, self.contains, self.datasets = reader.folder, reader.contains, reader.datasets
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
    """The group in tokens of its texts.

    Raises:
        DataError: its texts do not say what its tokens do: some of them are observations, or are those of several chat messages.
    """
    who = f"group {group.group_id} ({group.question_id})"
    if not group.mask.all() or not group.extra.keys().isdisjoint(MESSAGE_FIELDS):
        what = "has tokens that no policy generated" if not group.mask.all() else "was made of several chat messages"
        raise DataError(
            f"{who} {what}, which its text does not tell apart, and its tokens are another tokenizer's: "
            "import its source again with this policy's (grre rollouts import --tokenizer FOLDER, and --system-prompt as model.system_prompt)"
        )
    if mark := getattr(tokenizer, "mark_in", lambda _: "")(group.prompt):
        raise DataError(
            f"the prompt of {who} holds {mark!r}, so a chat template was applied to it, and would be again: "
            "import the messages (grre rollouts import --tokenizer FOLDER), or leave the group out with grre rollouts filter"
        )
    try:
        # A completion that was cut at a token limit did not end: the policy wrote no end token.
        completions = [
            np.asarray(tokenizer.encode_completion(text), np.int32)[: -1 if reason == "length" else None]
            for text, reason in zip(group.texts, group.finish_reasons, strict=True)
        ]
        prompt_ids = tokenizer.encode_prompt(Question(group.question_id, group.prompt, group.answer))
    except UsageError as error:
        raise DataError(f"{who} cannot be tokenised: {error}") from error
    prompt = np.asarray(prompt_ids, np.int32)
    absent = dict.fromkeys(("mask", "token_versions", *LOGPROB_FIELDS))
    return dataclasses.replace(
        group, prompt_tokens=prompt, tokens=np.concatenate(completions), lengths=[len(c) for c in completions], **absent
    )


def stored_batches(parts: setup.Parts, folder: rollouts.RolloutReader | Beginning) -> StoredBatches:
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
    numbers = usable(parts, reader, chosen)
    groups = config.training.groups_per_step - config.mixed_per_step
    batches = StoredBatches(reader, parts.tokenizer, numbers, groups, config.seed, *limits(config), **order_options(config))
    check_uses(config, batches, str(reader.folder))
    return batches


def usable(parts: setup.Parts, reader: TokenisedReader, numbers: Sequence[int]) -> list[int]:
    """The groups of an epoch: those that the run's `data` section wants, as often and in the order that it wants them. Every group is read once.

    Raises:
        DataError: a group cannot be learned from by the objective, or has no version where its age decides.
    """
    config, kept, versions, rewards, experts = parts.config, [], [], [], []
    newest = max((entry.policy_version for entry in reader.datasets), default=-1)
    held_out = HeldOut.of(config, parts.task)
    for number in numbers:
        group = reader[number]
        newest = max(newest, int(group.policy_version.min()))  # a data set of several versions names none
        wanted = group.has_signal or not config.data.drop_no_signal or demonstrates(group, parts.objective)
        if wanted and (not config.data.drop_over_limit or within_limits(group, parts.tokenizer, *limits(config))):
            check_group(parts.objective, config.sampling.temperature, group, reader.folder)
            for name in config.objective.stored_fields:
                check_stored(group, name)
            if held_out:
                held_out.see(group.question_id, group.prompt, f"group {group.group_id} of {reader.folder}")
            kept.append(number)
            versions.append(int(group.policy_version.min()))
            rewards.append(group.rewards)
            experts.append(bool(group.is_expert.all()))  # no policy's: it has no age
    if held_out:
        warn_of_leak(held_out.sentence())
    how = {name: getattr(config.data, name) for name in ("order", "prefer", "max_staleness")}
    return rollouts.arranged(kept, np.array(versions, int), rewards, newest=max(newest, 0), ageless=experts, **how)


def order_options(config: Config) -> dict[str, Any]:
    """How a stored order goes through its epochs, as `rollouts.TrainingOrder` takes it."""
    return {"shuffle": config.data.order == "shuffled", "uses": config.data.max_uses}


def check_uses(config: Config, order: Sized, folder: str) -> None:
    """Refuses a run that would train on a group more often than data.max_uses.

    Raises:
        DataError: naming the folder and how many steps it lasts.
    """
    if len(order) < config.training.steps:
        raise DataError(
            f"the groups of {folder}, each trained on at most data.max_uses = {config.data.max_uses} times, last {len(order)} steps, "
            f"and training.steps is {config.training.steps}: lower the steps or raise data.max_uses"
        )


def limits(config: Config) -> tuple[int, int]:
    """(sampling.max_prompt_tokens, sampling.max_new_tokens) of a configuration."""
    return config.sampling.max_prompt_tokens, config.sampling.max_new_tokens


def training_contents(parts: setup.Parts, stored: Iterable[Beginning] | None = None) -> set[str]:
    """Benchmark splits that the policy has seen or will see: those of its own past, and of the shards or the task it now learns from.

    Args:
        parts: of the run.
        stored: the folders that it reads; by default as they are now.
    """
    contents = setup.model_contents(parts.config)
    for folder in open_stored(parts.config, resume=False).values() if stored is None else stored:
        contents |= folder.contains
    return contents | set(parts.provenance()["contains"]) if parts.config.samples else contents
