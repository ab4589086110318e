"""The schema of a rollout record: one prompt, its K completions, and everything needed to train on
them.

A group is the unit of everything in the rollout folder: it is written, shuffled, weighted and
trained as a whole, because a group-relative advantage means nothing without the other completions.
Advantages are derived and never stored.

Token arrays are flat: the K completions one after the other, `lengths[k]` tokens each. The fields
of `Group`, with their annotations and docstring, are the only description of a record: conversion,
checks, the layout on the disk (`encoding`) and the documentation follow from them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from itertools import starmap
from typing import Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int32, UInt8, UInt16

from grre_jax.domains import annotations, inside, plain, shown
from grre_jax.errors import DataError
from grre_jax.tasks.judging import FIELD
from grre_jax.tasks.task import CORRECT

# A reader of 1.x reads every 1.y, without the fields that it lacks; 2.0.0 would be refused.
SCHEMA_VERSION = "1.4.0"
# Ended with an EOS token; cut at the token limit; unknown, as the completion is imported. Of a
# trajectory: ended by its environment; at the limit of turns or of tokens; the environment failed.
FINISH_REASONS = ("stop", "length", "imported", "done", "turns", "tokens", "failed")
# In `extra`: chat messages whose tokens the text alone does not give.
MESSAGE_FIELDS = ("prompt_messages", "completion_messages")
LOGPROB_FIELDS = (
    "behavior_logprobs",
    "sampling_logprobs",
    "policy_logprobs",
    "ref_logprobs",
    "prox_logprobs",
)
# Whose log-probs stored groups can carry besides the behaviour policy's, and in which field.
STORED_FIELDS = {"reference": "ref_logprobs", "proximal": "prox_logprobs"}
ROUNDING = 1e-3  # by which the log-prob of a sure token may be above 0

_TokenIds = Annotated[Int32[np.ndarray, "tokens"], "[0, inf)"]
_Logprobs = Float32[np.ndarray, "tokens"]
_Flags = Annotated[UInt8[np.ndarray, "completions"], "[0, 1]"]
_Ends = Int32[np.ndarray, "ends"]


@dataclasses.dataclass(kw_only=True, eq=False)
class Group:
    """One prompt with its K completions of T tokens in all, in N turns if they are trajectories.

    Array-likes are converted. A field that is left out gets the value of a text-only record of
    unknown origin. Arrays read from disk are read-only views: use `dataclasses.replace` to change a
    group.

    Args:
        group_id: identifier of the group.
        position: place in the prompt stream, -1 for imported groups.
        attempt: which sampling of that position, from 0.
        task: name of the task of the question.
        question_id: identifier of the question within its task.
        prompt: the prompt's text.
        answer: the question's true answer.
        prompt_tokens: token ids of the prompt [P]; empty in a text-only record, which the learner
            tokenises.
        texts: text of each completion (K).
        lengths: tokens of each completion, EOS included [K]; 0 in a text-only record.
        tokens: token ids of all completions, one after the other [T].
        mask: 1 where the policy generated the token, 0 elsewhere (an observation) [T].
        rewards: reward of each completion [K]; NaN without a verdict, since 1.3, for the reason
            that `extra["verify_failures"]` and `extra["verify_reasons"]` have.
        components: reward components by name, each [K]; NaN where one does not apply.
        finish_reasons: why each completion ended (K): stop, length, imported; since 1.2 done,
            turns, tokens, failed.
        behavior_logprobs: log-prob of each token at the sampling temperature over the full
            vocabulary [T], or None: importance ratios use it.
        sampling_logprobs: log-prob of each token in the distribution drawn from, after temperature
            and truncation [T], or None.
        policy_logprobs: log-prob of each token at temperature 1 over the full vocabulary [T], or
            None.
        ref_logprobs: as behavior_logprobs, but under a reference policy that the data set's
            `history` names [T], or None. Since 1.1.
        prox_logprobs: as ref_logprobs, under a proximal policy. Since 1.1.
        policy_version: version of the policy that generated each completion (that began it) [K], -1
            when unknown.
        token_versions: policy version of each token [T]; empty unless the weights changed within a
            completion. Since 1.1.
        sources: who generated each completion (K), "" for the run's own policy.
        is_expert: 1 for each completion that demonstrates what to imitate, 0 for one that was tried
            [K]. Since 1.1.
        temperature: sampling temperature.
        top_k: top-k truncation, 0 for none.
        top_p: top-p (nucleus) truncation, 1 for none.
        min_p: min-p truncation (share of the likeliest token's probability), 0 for none. Since 1.1.
        seed: seed that the random draws were addressed from, -1 when unknown.
        logprob_dtype: dtype that the sampler computed log-probs in (float32, bfloat16), "" when
            unknown. Since 1.1.
        engine: what sampled the completions, "" when unknown. Since 1.1.
        environment: name of the environment that the completions are trajectories of, "" for none.
            Since 1.2.
        environment_version: its version, "" when unknown. Since 1.2.
        environment_seed: its seed, the same for the whole group, -1 for none. Since 1.2.
        turn_counts: turns of each completion [K]; empty unless they are trajectories. Since 1.2.
        turn_tokens: first token of each turn that the policy sampled and the one after its last,
            counted in its completion, turn after turn [2N]. Since 1.2.
        turn_texts: as turn_tokens, in characters of the completion's text [2N]. Since 1.2.
        turn_rewards: reward of each turn [N]. Since 1.2.
        routes: of a mixture of experts, the experts of each token, of the prompt's and then of all
            completions': at each layer some [(P + T) x layers x experts of a token], 65535 for a
            token without; empty if they were not recorded. Since 1.4.
        extra: whatever else the record's source gives, as JSON values.

    Raises:
        DataError: a field is missing, misshapen or out of its domain; the message names group,
            field, domain and value.

    Examples:
        >>> from grre_jax import rollouts
        >>> group = rollouts.Group(group_id="a", prompt="2+2=", texts=["4", "5"], rewards=[1, 0])
        >>> group.num_completions, group.has_reward_variance, group.correct.tolist()
        (2, True, [True, False])
    """

    group_id: str
    position: Annotated[int, "[-1, inf)"] = -1
    attempt: Annotated[int, "[0, inf)"] = 0
    task: str = ""
    question_id: str = ""
    prompt: str
    answer: str = ""
    prompt_tokens: Annotated[Int32[np.ndarray, "prompt"], "[0, inf)"] | None = None
    texts: list[str]
    lengths: Annotated[Int32[np.ndarray, "completions"], "[0, inf)"] | None = None
    tokens: _TokenIds | None = None
    mask: Annotated[UInt8[np.ndarray, "tokens"], "[0, 1]"] | None = None
    rewards: Float32[np.ndarray, "completions"]
    components: dict[str, Float32[np.ndarray, "completions"]] = dataclasses.field(
        default_factory=dict
    )
    finish_reasons: list[str] | None = None
    behavior_logprobs: _Logprobs | None = None
    sampling_logprobs: _Logprobs | None = None
    policy_logprobs: _Logprobs | None = None
    ref_logprobs: _Logprobs | None = None
    prox_logprobs: _Logprobs | None = None
    policy_version: Annotated[Int32[np.ndarray, "completions"], "[-1, inf)"] | None = None
    token_versions: Annotated[Int32[np.ndarray, "tokens"], "[-1, inf)"] | None = None
    sources: list[str] | None = None
    is_expert: _Flags | None = None
    temperature: Annotated[float, "[0, inf)"] = 1.0
    top_k: Annotated[int, "[0, inf)"] = 0
    top_p: Annotated[float, "(0, 1]"] = 1.0
    min_p: Annotated[float, "[0, 1]"] = 0.0
    seed: int = -1
    logprob_dtype: str = ""
    engine: str = ""
    environment: str = ""
    environment_version: str = ""
    environment_seed: int = -1
    turn_counts: Annotated[Int32[np.ndarray, "completions"], "[0, inf)"] | None = None
    turn_tokens: _Ends | None = None
    turn_texts: _Ends | None = None
    turn_rewards: Annotated[Float32[np.ndarray, "turns"], "(-inf, inf)"] | None = None
    routes: UInt16[np.ndarray, "routes"] | None = None
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for field in GROUP_FIELDS:
            setattr(self, field.name, self._converted(field, getattr(self, field.name)))
        self.validate()

    def _converted(self, field: Field, value: Any) -> Any:
        name = field.name
        kind = field.kind
        if kind in ("int64", "float64"):
            return self._array(name, [value], kind)[0].item()  # also numpy's and jax's
        if kind == "list" and value is not None:
            fits = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
            self._check(fits, name, "a list of strings", value)
            return list(value)
        if kind == "text":
            self._check(isinstance(value, str), name, "a string", value)
        if kind in ("components", "extra"):
            self._check(isinstance(value, dict), name, "a dict", value)
        if kind == "components":
            return {str(key): self._array(name, row, np.float32) for key, row in value.items()}
        if kind in ("text", "extra"):
            return value
        if value is None:
            return self.absent(field)
        array = self._array(name, value, kind)
        # An empty array of log-probs is None, as it is on the disk.
        empty = name in LOGPROB_FIELDS and not array.size and not len(self.tokens)
        return None if empty else array

    def absent(self, field: Field) -> Any:
        """Returns the value of an optional field in a record of unknown origin.

        Args:
            field: of GROUP_FIELDS; the group has its texts and tokens.
        """
        name = field.name
        count = self.num_completions
        if not field.dimension:
            return getattr(Group, name)
        if field.kind == "list":
            return ["imported" if name == "finish_reasons" else ""] * count
        if name in LOGPROB_FIELDS:
            return None
        if name == "mask":
            return np.ones(len(self.tokens), np.uint8)
        size = count if name in ("lengths", "policy_version", "is_expert") else 0
        return np.full(size, -1 if name == "policy_version" else 0, field.kind)

    def validate(self) -> None:
        """Checks every field's shape and domain.

        Raises:
            DataError: naming group, field, domain and value.
        """
        self.validate_shapes()
        for field in GROUP_FIELDS:
            value = getattr(self, field.name)
            if field.interval and np.size(value):
                for bound in (np.min(value), np.max(value)):  # both are NaN if any is, and refused
                    fits = inside(bound, field.interval)
                    self._check(fits, field.name, f"numbers in {field.interval}", bound)
        for reason in self.finish_reasons:
            domain = f"one of {', '.join(FINISH_REASONS)}"
            self._check(reason in FINISH_REASONS, "finish_reasons", domain, reason)
        self._validate_rewards()
        self._validate_turns()

    def _validate_rewards(self) -> None:
        failures = self.extra.get(FIELD) or [""] * self.num_completions
        domain = "one string per completion, empty for one with a verdict"
        fits = isinstance(failures, list) and len(failures) == self.num_completions
        self._check(fits, f"extra[{FIELD!r}]", domain, failures)
        failed = np.array([bool(failure) for failure in failures])
        fits = np.isfinite(self.rewards) | (np.isnan(self.rewards) & failed)
        domain = f"finite numbers, or NaN where extra[{FIELD!r}] has the reason"
        self._check(fits.all(), "rewards", domain, self.rewards)
        for name, row in self.components.items():
            domain = "finite numbers, or NaN where it does not apply"
            self._check(not np.isinf(row).any(), "components", f"{domain} ({name})", row)
        for name in LOGPROB_FIELDS:
            row = getattr(self, name)
            if row is not None:
                fits = (self.mask == 0) | (np.isfinite(row) & (row <= ROUNDING))
                domain = "finite numbers of at most 0 for generated tokens"
                self._check(fits.all(), name, domain, row[~fits][:1])

    def _validate_turns(self) -> None:
        """Checks that the policy generated the tokens of its turns and no others."""
        sampled = np.zeros(len(self.tokens), np.uint8)
        for k in range(len(self.turn_counts)):
            for first, last in self.turns(k):
                sampled[self.offsets[k] + first : self.offsets[k] + last] = 1
        if len(self.turn_counts):
            fits = (sampled == self.mask).all()
            self._check(fits, "turn_tokens", "the tokens that the mask marks", self.turn_tokens)

    def validate_shapes(self) -> None:
        """Checks that the arrays fit each other (the part of `validate` that reading from disk
        repeats).

        Raises:
            DataError: naming group, field, domain and value.
        """
        self._check(self.texts, "texts", "at least one completion", self.texts)
        turns = int(self.turn_counts.sum())
        sizes = {
            "completions": self.num_completions,
            "tokens": len(self.tokens),
            "turns": turns,
            "ends": 2 * turns,
        }
        for field in GROUP_FIELDS:
            value = getattr(self, field.name)
            size = sizes.get(field.dimension)
            if value is None or size is None:
                continue
            for row in value.values() if field.kind == "components" else [value]:
                fits = len(row) == size or (field.name in _MAY_BE_EMPTY and not len(row))
                domain = f"{size} values, one per {field.dimension[:-1]}"
                self._check(fits, field.name, domain, row)
        fits = int(self.lengths.sum(dtype=np.int64)) == len(self.tokens)
        domain = f"lengths that add up to the {len(self.tokens)} tokens"
        self._check(fits and self.lengths.min() >= 0, "lengths", domain, self.lengths)
        size = len(self.prompt_tokens) + len(self.tokens)
        fits = not len(self.routes) or (size and len(self.routes) % size == 0)
        domain = f"as many values for each of {size} tokens, or none"
        self._check(fits, "routes", domain, self.routes)

    @property
    def num_completions(self) -> int:
        """K, the number of completions."""
        return len(self.texts)

    @property
    def offsets(self) -> Int[np.ndarray, " completions_plus_1"]:
        """Start of each completion in the token arrays, and the end of the last [K + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    def turns(self, k: int, unit: str = "turn_tokens") -> list[tuple[int, int]]:
        """Returns start and end of each turn of completion `k`, in tokens or (`turn_texts`) in
        characters of its text; none unless it is a trajectory.
        """
        first = int(self.turn_counts[:k].sum())
        last = int(self.turn_counts[: k + 1].sum())
        ends = getattr(self, unit)[2 * first : 2 * last].reshape(-1, 2)
        return [tuple(turn) for turn in ends.tolist()]

    @property
    def judged(self) -> Bool[np.ndarray, " completions"]:
        """True for each completion that has a verdict [K]."""
        return ~np.isnan(self.rewards)

    @property
    def judged_rewards(self) -> Float[np.ndarray, " judged"]:
        """Rewards of the completions that have a verdict [J]."""
        return self.rewards[self.judged]

    @property
    def has_reward_variance(self) -> bool:
        """True if the rewards differ: equal rewards have no group-relative advantage."""
        return len(np.unique(self.judged_rewards)) > 1

    @property
    def correct(self) -> Bool[np.ndarray, " completions"] | None:
        """Correctness of each completion [K], False without a verdict; None if it is unknown.

        The component "correct" decides; without one the rewards, if they are all 0 or 1. This is
        the one rule of the package: accuracy, pass@k, ranking and filters all follow it.
        """
        row = self.components.get(CORRECT, self.rewards)
        return row == 1 if np.isin(row[self.judged], (0, 1)).all() else None

    def with_verdicts(self) -> Group | None:
        """Returns the group as it is trained on: without its completions that have no verdict.

        Returns:
            The group itself if every completion has a verdict; None if fewer than two have one,
            since the group then has no signal.
        """
        judged = self.judged
        if judged.all():
            return self
        return self._select(judged) if judged.sum() > 1 else None

    def _select(self, chosen: Bool[np.ndarray, " completions"]) -> Group:
        """Returns the group with some of its completions."""
        turns = np.repeat(chosen, self.turn_counts if len(self.turn_counts) else 0)
        tokens = np.repeat(chosen, self.lengths)
        prompt = np.ones(len(self.prompt_tokens), bool)
        sequence = np.concatenate([prompt, tokens])
        masks = {
            "completions": chosen,
            "tokens": tokens,
            "routes": np.repeat(sequence, len(self.routes) // max(1, len(sequence))),
            "turns": turns,
            "ends": np.repeat(turns, 2),
        }
        values = {}
        for field in GROUP_FIELDS:
            value = getattr(self, field.name)
            mask = masks.get(field.dimension)
            if mask is None or value is None or not len(value):
                continue
            if field.kind == "list":
                value = [text for text, kept in zip(value, mask, strict=True) if kept]
            elif field.kind == "components":
                value = {name: row[mask] for name, row in value.items()}
            else:
                value = value[mask]
            values[field.name] = value
        # Lists are of the completions.
        extra = {name: value for name, value in self.extra.items() if not isinstance(value, list)}
        return dataclasses.replace(self, **values, extra=extra)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        try:
            np.testing.assert_equal(vars(self), vars(other))  # NaN equals NaN, in lists too
        except AssertionError:
            return False
        return True

    __hash__ = None

    def _array(self, name: str, values: Any, dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        try:
            array = np.asarray(values)
            with np.errstate(all="ignore"):  # what becomes infinite is refused by `validate`
                converted = np.ascontiguousarray(array, dtype)
        except (ValueError, TypeError, OverflowError, RecursionError):
            array = converted = np.empty((0, 0))
        kinds = "iufV" if dtype.kind == "i" else "iubfV"  # V: bfloat16 and its kin
        fits = array.ndim == 1 and (not array.size or array.dtype.kind in kinds)
        if fits and dtype.kind in "iu":
            fits = (converted == array).all()  # a cast to integers cuts silently
        self._check(fits, name, f"a flat list of {dtype.name} numbers", values)
        return converted

    def _check(self, fits: Any, name: str, domain: str, value: Any) -> None:
        if not fits:
            raise DataError(
                f"Group {self.group_id!r}: field {name}: expected {domain}, got {shown(value)}."
            )


class Field(NamedTuple):
    """A field of a group.

    Attributes:
        name: of the attribute.
        kind: text; int64 or float64 for a number; the dtype of an array; list of strings, one per
            completion; components or extra.
        dimension: of an array or list: prompt, completions, tokens, turns, ends for two per turn,
            or routes for some per token.
        interval: of its numbers, as "[0, 1]"; "" for any.
    """

    name: str
    kind: str
    dimension: str
    interval: str


def _field(name: str, annotation: Any) -> Field:
    members = [annotation, *typing.get_args(annotation)]
    annotated = [member for member in members if typing.get_origin(member) is Annotated]
    interval = annotated[0].__metadata__[0] if annotated else ""
    kind = plain(annotation)
    if hasattr(kind, "dtypes"):
        return Field(name, kind.dtypes[0], kind.dim_str, interval)
    if name == "extra" or kind in _KINDS:
        return Field(name, _KINDS.get(kind, name), "", interval)
    return Field(name, "components" if name == "components" else "list", "completions", "")


_KINDS = {str: "text", int: "int64", float: "float64"}
GROUP_FIELDS = tuple(starmap(_field, annotations(Group).items()))
_MAY_BE_EMPTY = ("token_versions", "turn_counts")


def correctness(groups: Sequence[Group]) -> list[Bool[np.ndarray, " judged"]] | None:
    """Returns `Group.correct` of each group's completions that have a verdict; None if it is
    unknown for any group, as shares of the others would mislead.
    """
    rows = [group.correct for group in groups]
    if any(row is None for row in rows):
        return None
    return [row[group.judged] for row, group in zip(rows, groups, strict=True)]
