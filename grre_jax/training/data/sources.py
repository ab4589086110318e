"""The rollout folders that a run trains on: opened as they were when the run began, and their
usable groups selected by the `data` section. This happens once a run, before the four stages.
"""

import collections
import copy
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.json_files import read_object, require
from grre_jax.objectives import Objective
from grre_jax.parallel import processes
from grre_jax.rollouts import Group
from grre_jax.rollouts.dataset import check_limits, read_tokenised, within_limits
from grre_jax.storage.files import replace
from grre_jax.tasks import Task, Tokenizer
from grre_jax.training import build
from grre_jax.training.config.run import Config
from grre_jax.training.data.pack import require_logprobs

# In the run's folder: {path: {"datasets": number, "sha256": of the digests of their data}}.
FILE = "stored.json"
ROUNDING = 0.02  # nats by which log-probs of the same logits may differ: two bfloat16 sums

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A rollout folder that a run trains on.

    Attributes:
        reader: the folder; of a folder that others write too, as it was when the run began.
        tokenizer: the policy's; None takes the groups' tokens as they are.
        expert: every completion is marked as an expert's.
        mixed: the folder is of data.mix, so its policy versions are unknown to this run.
        with_logprobs: of data.mix: groups keep their behaviour log-probs.
    """

    reader: rollouts.RolloutReader
    tokenizer: Tokenizer | None = None
    expert: bool = False
    mixed: bool = False
    with_logprobs: bool = True
    _signals: dict[int, bool] = dataclasses.field(default_factory=dict)

    def group(self, index: int) -> Group:
        """Returns a group in the policy's own tokens, marked as an expert's if the source is."""
        if self.tokenizer is None:
            return self.reader[index]
        group = read_tokenised(self.reader, index, self.tokenizer)
        if self.expert:
            group = dataclasses.replace(group, is_expert=np.ones(len(group.texts), np.uint8))
        return group

    def read(self, index: int) -> Group:
        """Returns a group as it is trained on: of a mix without versions."""
        group = self.group(index)
        if not self.mixed:
            return group
        group = copy.copy(group)
        group.policy_version = np.full(len(group.texts), -1, np.int32)
        group.token_versions = np.zeros(0, np.int32)
        if not self.with_logprobs:
            group.behavior_logprobs = None
        return group

    def version(self, index: int) -> int:
        """Returns the policy version of the data set that a group is in."""
        return self.reader.locate(index)[0].policy_version

    def has_reward_variance(self, index: int) -> bool:
        """True if the rewards of a group differ. The group is read once."""
        if index not in self._signals:
            # A sealed group never changes.
            self._signals[index] = self.reader[index].has_reward_variance
        return self._signals[index]


# ---- the folders


def open_folders(config: Config, *, resume: bool) -> dict[str, rollouts.RolloutReader]:
    """Opens the folders of data.path and data.mix.

    All processes of a run call this together and get the same data sets, though they read the
    folders at different moments.

    Args:
        config: the run's.
        resume: take the data sets that were there when the run began; else all that are sealed.

    Returns:
        The folders, by the path that the configuration names.

    Raises:
        DataError: a folder is missing or damaged, or lacks data sets that the run began with; or
            the run's record of them is damaged.
    """
    file = config.folder / FILE
    # Without it the run was killed before it was written, or reads nothing.
    recorded = read_object(file) if resume and file.is_file() else None
    readers = {}
    paths = (config.data.path, *(entry.path for entry in config.data.entries))
    # Not a set, whose order differs between processes: each path is one exchange among them.
    for path in dict.fromkeys(filter(None, paths)):
        reader = rollouts.read(path)
        # Others may seal meanwhile: what the process that looked first found is there for all.
        there = int(processes.gather_ints(len(reader.datasets)).min())
        mark: dict[str, Any] = {"datasets": there}
        if recorded is not None:
            mark = require(recorded.get(path), dict, file, path)
        readers[path] = rollouts.RolloutReader(path, min(mark["datasets"], there))
        now = _digest(readers[path])
        # Earlier versions recorded no digest.
        if mark["datasets"] > there or mark.get("sha256", now) != now:
            raise DataError(
                f"rollout folder {path}: expected the {mark['datasets']} data sets that run"
                f" {config.location} began with, got others: restore it, or start the run again"
                " with --overwrite"
            )
    return readers


def _digest(reader: rollouts.RolloutReader) -> str:
    """Returns a digest of the data of all data sets, hexadecimal."""
    files = [entry.files[entry.data_file]["sha256"] for entry in reader.datasets]
    return hashlib.sha256("".join(files).encode()).hexdigest()


def record_folders(folder: Path, folders: Mapping[str, rollouts.RolloutReader]) -> None:
    """Writes the data sets that a run reads, if any, into its folder, for `open_folders`."""
    marks = {
        path: {"datasets": len(reader.datasets), "sha256": _digest(reader)}
        for path, reader in folders.items()
    }
    if marks:
        replace(folder / FILE, json.dumps(marks, indent=2) + "\n")


# ---- their usable groups


def usable(parts: build.Parts, source: Source) -> tuple[list[int], bool]:
    """Selects the groups of an epoch by the run's `data` section. Every group is read once.

    Args:
        parts: configuration, tokenizer and objective, which select the usable groups.
        source: the folder.

    Returns:
        The numbers of the selected groups, in the order of an epoch; and True if every group that
        was read has behaviour log-probs.

    Raises:
        DataError: an epoch has fewer groups than a step of data.path, or none; the objective cannot
            learn from a selected group, it is over the limits, or a token of it has no text in the
            policy's tokenizer; or its version is unknown and data.max_staleness needs its age.
    """
    config = parts.config
    data = config.data
    folder = source.reader.folder
    least = 1 if source.mixed else config.training.prompts_per_step - config.mixed_per_step
    newest = max([0, *(entry.policy_version for entry in source.reader.datasets)])
    held_out = _held_out(config, parts.task)
    names = set().union(*held_out)
    trained_on: set[str] = set()
    with_logprobs = True
    dropped: collections.Counter[str] = collections.Counter()
    kept: list[tuple[int, int, bool]] = []
    for index in range(len(source.reader)):
        group = source.group(index)
        # -1, unknown, if the version of any completion is.
        version = int(group.policy_version.min())
        with_logprobs &= group.behavior_logprobs is not None
        # The manifest names no version for a data set of several.
        newest = max(newest, version)
        if data.drop_over_limit and not within_limits(group, *limits(config)):
            dropped["data.drop_over_limit"] += 1
            continue
        if group.with_verdicts() is None:
            dropped["a missing verdict"] += 1
            continue
        signal = group.has_reward_variance or is_expert_demonstration(group, parts.objective)
        # Returns of single turns may differ where the rewards of whole trajectories are equal.
        signal |= bool(parts.objective.returns and len(group.turn_counts))
        if data.drop_zero_variance and not signal:
            dropped["data.drop_zero_variance"] += 1
            continue
        where = f"group {group.group_id} of {folder}"
        # On a device, an index out of the embedding's range raises nothing.
        largest = max(group.tokens.max(initial=0), group.prompt_tokens.max(initial=0))
        if largest >= parts.tokenizer.vocab_size:
            raise DataError(
                f"{where}: expected tokens below {parts.tokenizer.vocab_size}, the ids of the"
                f" policy's tokenizer, got {largest}. Leave the group out with grre rollouts"
                " filter."
            )
        check_limits(group, *limits(config))
        check_group(parts.objective, config.sampling.temperature, group, where)
        for name in config.objective.stored_fields:
            require_logprobs(group, name, where)
        trained_on |= names & {group.question_id, group.prompt}
        ageless = bool(group.is_expert.all())  # sampled by no policy
        if version < 0 and data.max_staleness >= 0 and not ageless:
            raise DataError(
                f"{where}: expected policy_version, which data.max_staleness needs, got -1. Set"
                " data.max_staleness to -1"
            )
        kept.append((version, index, ageless))
    if trained_on and processes.is_first():
        _log.warning(
            "%s has %s of the run's evaluation questions: the evaluation measures memory there",
            folder,
            sum(not trained_on.isdisjoint(own) for own in held_out),
        )
    # After the loop, since any group may have the newest version.
    groups = [
        index
        for version, index, ageless in kept
        if data.max_staleness < 0 or ageless or newest - version <= data.max_staleness
    ]
    if len(groups) < least and len(source.reader):
        dropped["data.max_staleness"] = len(kept) - len(groups)
        counts = ", ".join(f"{count} by {reason}" for reason, count in dropped.items() if count)
        raise DataError(
            f"{folder}: expected at least {least} groups to train on, got {len(groups)} of"
            f" {len(source.reader)} (dropped: {counts or 'none'}). Lower"
            " training.prompts_per_step, or widen these filters"
        )
    return groups, with_logprobs


def is_expert_demonstration(group: Group, objective: Objective) -> bool:
    """True if the whole group is an expert's and the objective treats an expert's completions
    separately: it then needs neither log-probs nor a signal.
    """
    return "expert" in objective.requires and bool(group.is_expert.all())


def check_group(objective: Objective, temperature: float, group: Group, where: str) -> None:
    """Refuses a stored group that the objective cannot learn from.

    A ratio compares the policy with the stored behaviour log-probs, both at the sampling
    temperature and over the full vocabulary, regardless of the top-k, top-p or min-p that the data
    was drawn with.

    Args:
        objective: the run's.
        temperature: of the log-probs that training computes.
        group: stored.
        where: the group, for the message.

    Raises:
        DataError: the objective needs behaviour log-probs and the group has none, or they are of
            another temperature, or of a truncated distribution.
    """
    if "old_logprobs" not in objective.requires or is_expert_demonstration(group, objective):
        return
    require_logprobs(group, "behavior_logprobs", where)
    fix = "Compute them under a checkpoint with `grre rollouts rescore`"
    if group.temperature != temperature:
        raise DataError(
            f"{where}: expected log-probs at sampling.temperature = {temperature:g}, since a ratio"
            f" compares two distributions, got {group.temperature:g}. {fix}, or set the field"
        )
    if group.sampling_logprobs is None:
        return
    # What truncation keeps gains probability, so the full vocabulary's log-prob is never above.
    over = (group.behavior_logprobs - group.sampling_logprobs)[group.mask != 0].max(initial=0)
    if over > ROUNDING:
        raise DataError(
            f"{where}: expected behavior_logprobs over the full vocabulary, at most those of the"
            f" truncated distribution (top_k {group.top_k}, top_p {group.top_p}, min_p"
            f" {group.min_p}), got a token {over:.3g} above. {fix}"
        )


def _held_out(config: Config, task: Task) -> list[set[str]]:
    """Returns id and prompt of each evaluation question; none if the run may evaluate on what it
    trains on.
    """
    evaluation = config.evaluation
    if evaluation.allow_contaminated or not evaluation.questions:
        return []
    questions = task.evaluation(evaluation.questions)
    # Without "", which would be found in every group that lacks an id or a prompt.
    return [{question.question_id, question.prompt} - {""} for question in questions]


def limits(config: Config) -> tuple[int, int]:
    """Returns sampling.max_prompt_tokens and sampling.max_new_tokens of a configuration."""
    return config.sampling.max_prompt_tokens, config.sampling.max_new_tokens


def training_contents(parts: build.Parts, folders: Iterable[rollouts.RolloutReader]) -> set[str]:
    """Returns the benchmark splits that the policy has seen or will see: those that its model was
    trained on, and those of the folders or the task that it learns from.

    Args:
        parts: have the splits of the task.
        folders: that it reads.
    """
    # Demonstrations of the warm start are of the task too.
    task_data = parts.config.samples or parts.config.warm_start.steps
    names = parts.provenance()["contains"] if task_data else ()
    contents = build.model_contents(parts.config)
    return contents.union(names, *(folder.contains for folder in folders))
