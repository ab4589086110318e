"""The schema of a rollout record: one prompt, its K completions, and everything needed to train on
them.

A group is the unit of everything in the rollout folder: it is written, shuffled, weighted and
trained as a whole, because a group-relative advantage means nothing without the other completions.
Advantages are derived and never stored.

Token arrays are flat: the K completions one after the other, `lengths[k]` tokens each. On disk a
group is a flat record, one feature of a TFDS example per row of `FIELDS` (nested ragged features
cannot be written without TensorFlow).
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from grre_jax.domains import between
from grre_jax.errors import DataError
from grre_jax.tasks.judging import FIELD
from grre_jax.tasks.task import CORRECT

# A reader of 1.x reads every 1.y, without the fields that it lacks; 2.0.0 would be refused.
SCHEMA_VERSION = "1.3.0"
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

# Name, kind and meaning of each feature. Kinds: text (UTF-8), int (int64), float (float64), or the
# dtype of a 1-D array stored as raw bytes.
_TABLE = """\
group_id | text | Identifier of the group.
position | int | Place in the prompt stream, -1 for imported groups.
attempt | int | Which sampling of that position, from 0.
task | text | Name of the task that asked the question.
question_id | text | Identifier of the question within its task.
prompt | text | The prompt's text.
answer | text | The question's true answer.
prompt_tokens | int32 | Token ids of the prompt; empty when the record holds text only.
lengths | int32 | Tokens of each completion, EOS included; 0 when the record holds text only.
tokens | int32 | Token ids of all completions, one after the other.
mask | uint8 | 1 where the policy generated the token, 0 elsewhere (an observation).
texts | uint8 | UTF-8 bytes of all completions' texts, one after the other.
text_lengths | int32 | Bytes of each completion's text.
rewards | float32 | Reward of each completion; NaN without a verdict, since 1.3.
component_names | text | JSON list: names of the reward components.
components | float32 | Reward components, one completion-long row per name; NaN where one \
does not apply.
finish_reasons | text | JSON list: why each completion ended (stop, length, imported; since 1.2 \
done, turns, tokens, failed).
behavior_logprobs | float32 | Log-prob of each token at the sampling temperature over the full \
vocabulary; empty when unknown.
sampling_logprobs | float32 | Log-prob of each token in the distribution drawn from, truncation \
included; empty when unknown.
policy_logprobs | float32 | Log-prob of each token at temperature 1 over the full vocabulary; \
empty when unknown.
ref_logprobs | float32 | As behavior_logprobs, but under a reference policy that the folder's \
history names; empty when unknown. Since 1.1.
prox_logprobs | float32 | As ref_logprobs, under a proximal policy. Since 1.1.
policy_version | int32 | Version of the policy that generated each completion (that began it), -1 \
when unknown.
token_versions | int32 | Policy version of each token; empty unless the weights changed within a \
completion. Since 1.1.
sources | text | JSON list: who generated each completion; empty string for the run's own policy.
is_expert | uint8 | 1 for each completion that demonstrates what to imitate, 0 for one that was \
tried. Since 1.1.
temperature | float | Sampling temperature.
top_k | int | Top-k truncation, 0 for none.
top_p | float | Top-p (nucleus) truncation, 1 for none.
min_p | float | Min-p truncation (share of the likeliest token's probability), 0 for none. Since \
1.1.
seed | int | Seed that the random draws were addressed from, -1 when unknown.
logprob_dtype | text | Dtype that the sampler computed log-probs in (float32, bfloat16), empty \
when unknown. Since 1.1.
engine | text | What sampled the completions, empty when unknown. Since 1.1.
environment | text | Name of the environment that the completions are trajectories of, empty for \
none. Since 1.2.
environment_version | text | Its version, empty when unknown. Since 1.2.
environment_seed | int | Its seed, the same for the whole group, -1 for none. Since 1.2.
turn_counts | int32 | Turns of each completion; empty unless they are trajectories. Since 1.2.
turn_tokens | int32 | First token of each turn that the policy sampled and the one after its last, \
counted in its completion. Since 1.2.
turn_texts | int32 | As turn_tokens, in characters of the completion's text. Since 1.2.
turn_rewards | float32 | Reward of each turn. Since 1.2.
extra | text | JSON object: whatever else the record's source said."""
FIELDS: tuple[tuple[str, str, str], ...] = tuple(
    (name, kind, meaning)
    for name, kind, meaning in (line.split(" | ") for line in _TABLE.splitlines())
)
# Fields of a record that a `Group` has in another form.
ENCODED = frozenset(
    "texts text_lengths component_names components finish_reasons sources extra".split()
)


@dataclasses.dataclass(kw_only=True, eq=False)
class Group:
    """One prompt with its K completions, T tokens in all.

    Array-likes are converted. A field that is left out gets the value of a text-only record of
    unknown origin. Arrays read from disk are read-only views: use `dataclasses.replace` to change a
    group.

    Attributes:
        group_id: identifier of the group.
        prompt: the prompt's text.
        texts: text of each completion (K).
        rewards: reward of each completion [K]; NaN without a verdict, for the reason that
            `extra["verify_failures"]` and `extra["verify_reasons"]` have.
        position: place in the prompt stream, -1 for imported groups.
        attempt: which sampling of that position, from 0.
        task, question_id, answer: the question's task, its identifier there and its true answer.
        prompt_tokens: token ids of the prompt [P]; empty in a text-only record, which the learner
            tokenises.
        lengths: tokens of each completion, EOS included [K]; zeros in a text-only record.
        tokens: token ids of the completions, one after the other [T].
        mask: 1 where the policy generated the token [T].
        components: reward components by name, each [K]; NaN where one does not apply.
        finish_reasons: one of FINISH_REASONS per completion (K).
        behavior_logprobs: at the sampling temperature, full vocabulary [T], or None: importance
            ratios use it.
        sampling_logprobs: in the distribution drawn from, after temperature and truncation [T], or
            None.
        policy_logprobs: at temperature 1, full vocabulary [T], or None.
        ref_logprobs, prox_logprobs: as behavior_logprobs, but under a reference and a proximal
            policy that the data set's `history` names [T], or None.
        policy_version: version of the policy that generated each completion [K] (that began it), -1
            when unknown.
        token_versions: policy version of each token [T], or empty unless the weights changed within
            a completion.
        sources: who generated each completion (K), "" for the run's own policy.
        is_expert: 1 for each completion that demonstrates what to imitate [K].
        temperature, top_k, top_p, min_p, seed: the sampling settings (top_k 0: none; top_p 1: none;
            min_p 0: none; seed -1: unknown).
        logprob_dtype, engine: the dtype that the sampler computed log-probs in, and its name, ""
            when unknown.
        environment, environment_version, environment_seed: of the environment that the completions
            are trajectories of; "", "" and -1 for none.
        turn_counts: turns of each completion [K]; empty, as the other three, unless they are
            trajectories.
        turn_tokens: first token of each turn that the policy sampled and the one after its last, in
            its completion, turn after turn [2N].
        turn_texts: the same in characters of the completion's text [2N].
        turn_rewards: of each turn [N].
        extra: any other JSON value.

    Raises:
        DataError: a field is missing, misshapen or out of its domain; the message names group,
            field, value and fix.
    """

    group_id: str
    prompt: str
    texts: list[str]
    rewards: Float[np.ndarray, " completions"]
    position: int = -1
    attempt: int = 0
    task: str = ""
    question_id: str = ""
    answer: str = ""
    prompt_tokens: Int[np.ndarray, " prompt"] | None = None
    lengths: Int[np.ndarray, " completions"] | None = None
    tokens: Int[np.ndarray, " tokens"] | None = None
    mask: UInt8[np.ndarray, " tokens"] | None = None
    components: dict[str, Float[np.ndarray, " completions"]] = dataclasses.field(
        default_factory=dict
    )
    finish_reasons: list[str] | None = None
    behavior_logprobs: Float[np.ndarray, " tokens"] | None = None
    sampling_logprobs: Float[np.ndarray, " tokens"] | None = None
    policy_logprobs: Float[np.ndarray, " tokens"] | None = None
    ref_logprobs: Float[np.ndarray, " tokens"] | None = None
    prox_logprobs: Float[np.ndarray, " tokens"] | None = None
    policy_version: Int[np.ndarray, " completions"] | None = None
    token_versions: Int[np.ndarray, " tokens"] | None = None
    sources: list[str] | None = None
    is_expert: UInt8[np.ndarray, " completions"] | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = -1
    logprob_dtype: str = ""
    engine: str = ""
    environment: str = ""
    environment_version: str = ""
    environment_seed: int = -1
    turn_counts: Int[np.ndarray, " completions"] | None = None
    turn_tokens: Int[np.ndarray, " turns_times_2"] | None = None
    turn_texts: Int[np.ndarray, " turns_times_2"] | None = None
    turn_rewards: Float[np.ndarray, " turns"] | None = None
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.texts = list(self.texts)
        count = len(self.texts)
        absent = {
            "lengths": np.zeros(count, np.int32),
            "policy_version": np.full(count, -1, np.int32),
            "is_expert": np.zeros(count, np.uint8),
        }
        for name, kind, _ in FIELDS:
            if kind == "text" or name in ENCODED:
                continue
            value = getattr(self, name)
            if kind in ("int", "float"):
                value = self._number(name, value, np.dtype(f"{kind}64"))
            elif name in LOGPROB_FIELDS:
                # An empty array says nothing that None does not: on disk "none" is an empty array.
                none = value is None or (np.size(value) == 0 and not len(self.tokens))
                value = None if none else self._array(name, value, np.float32)
            elif value is None and name not in absent:
                value = np.zeros(0, kind)
            else:
                value = absent[name] if value is None else value
                value = self._array(name, value, np.dtype(kind))
            setattr(self, name, value)
            if name == "tokens":
                absent["mask"] = np.ones(len(value), np.uint8)
        self.components = {
            str(name): self._array(f"components[{name!r}]", row, np.float32)
            for name, row in self.components.items()
        }
        for name, unknown in (("finish_reasons", "imported"), ("sources", "")):
            values = getattr(self, name)
            setattr(self, name, [unknown] * count if values is None else list(values))
        self.validate()

    @property
    def truncation(self) -> dict[str, float]:
        """Truncation settings by name, with those in `extra["sampling_params"]`."""
        others = self.extra.get("sampling_params")
        own = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return own | (others if isinstance(others, dict) else {})

    @property
    def truncated(self) -> bool:
        """True if some tokens could not be drawn."""
        return self.truncation != {"top_k": 0, "top_p": 1, "min_p": 0}

    def validate(self) -> None:
        """Checks every field's shape and domain.

        Raises:
            DataError: naming group, field, value and fix.
        """
        self.validate_shapes()
        self._validate_texts()
        self._validate_arrays()
        self._validate_turns()
        try:
            between(self, temperature="[0, inf)", top_p="(0, 1]", min_p="[0, 1]")
            between(self, position="[-1, inf)", attempt="[0, inf)", top_k="[0, inf)")
        except ValueError as error:
            raise DataError(f"Group {self.group_id!r}: field {error}") from error

    def _validate_texts(self) -> None:
        for name, kind, _ in FIELDS:
            if kind == "text" and name not in ENCODED:
                value = getattr(self, name)
                self._check(isinstance(value, str), name, value, "give a string")
        for name in ("texts", "sources"):
            for value in getattr(self, name):
                self._check(isinstance(value, str), name, value, "give one string per completion")
        for reason in self.finish_reasons:
            fix = f"use one of {', '.join(FINISH_REASONS)}"
            self._check(reason in FINISH_REASONS, "finish_reasons", reason, fix)

    def _validate_arrays(self) -> None:
        failures = self.extra.get(FIELD) or [""] * self.num_completions
        verdicts = np.array([not failure for failure in failures])
        fix = "give one string per completion, empty for one with a verdict"
        self._check(len(verdicts) == self.num_completions, f"extra[{FIELD!r}]", failures, fix)
        right = np.isfinite(self.rewards) | (np.isnan(self.rewards) & ~verdicts)
        fix = f"give finite numbers, or NaN where extra[{FIELD!r}] says why there is no verdict"
        self._check(right.all(), "rewards", self.rewards, fix)
        for name, row in self.components.items():
            fix = "give finite numbers, or NaN where a component does not apply"
            self._check(not np.isinf(row).any(), f"components[{name!r}]", row, fix)
        turns = self.turn_rewards
        self._check(np.isfinite(turns).all(), "turn_rewards", turns, "give finite numbers")
        for name, least, most, fix in (
            ("prompt_tokens", 0, None, "give values of at least 0"),
            ("tokens", 0, None, "give values of at least 0"),
            ("policy_version", -1, None, "give values of at least -1"),
            ("token_versions", -1, None, "give values of at least -1"),
            ("mask", 0, 1, "use 1 for tokens that the policy generated and 0 for others"),
            ("is_expert", 0, 1, "use 1 for demonstrations and 0 for others"),
        ):
            row = getattr(self, name)
            if row.size:
                self._check(row.min() >= least, name, row.min(), fix)
                self._check(most is None or row.max() <= most, name, row.max(), fix)
        for name in LOGPROB_FIELDS:
            row = getattr(self, name)
            if row is not None:  # 1e-3: rounding
                wrong = row[(self.mask != 0) & ~(np.isfinite(row) & (row <= 1e-3))]
                fix = "log-probabilities of generated tokens are finite and at most 0"
                if wrong.size:
                    self._fail(name, repr(wrong[0].item()), fix)

    def _validate_turns(self) -> None:
        """Checks that the turns are where the policy generated, one after the other."""
        sampled = np.zeros(len(self.tokens), np.uint8)
        for k in range(len(self.turn_counts)):
            start, end = self.offsets[k : k + 2]
            for name, most in (("turn_tokens", end - start), ("turn_texts", len(self.texts[k]))):
                ends = [end for turn in self.turns(k, name) for end in turn]
                right = ends == sorted(ends) and (not ends or (ends[0] >= 0 and ends[-1] <= most))
                self._check(right, name, ends, f"give ascending numbers from 0 to {most}")
            for first, last in self.turns(k):
                sampled[start + first : start + last] = 1
        if len(self.turn_counts):
            fix = "its turns are the tokens that the policy generated"
            self._check((sampled == self.mask).all(), "turn_tokens", self.turn_tokens, fix)

    def validate_shapes(self) -> None:
        """Checks that the arrays fit each other (the part of `validate` that reading from disk
        repeats).

        Raises:
            DataError: naming group, field, value and fix.
        """
        count, total = len(self.texts), len(self.tokens)
        if count == 0:
            self._fail("texts", "none", "a group has at least one completion")
        names = ("lengths", "rewards", "finish_reasons", "policy_version", "sources", "is_expert")
        rows = {name: getattr(self, name) for name in names}
        rows |= {f"components[{name!r}]": row for name, row in self.components.items()}
        for name, row in rows.items():
            if len(row) != count:
                self._fail(name, f"{len(row)} values", f"give one per completion: {count}")
        self._check(
            self.lengths.min() >= 0 and int(self.lengths.sum(dtype=np.int64)) == total,
            "lengths",
            self.lengths,
            f"the completions' lengths must add up to the {total} tokens given",
        )
        for name in ("mask", *LOGPROB_FIELDS, "token_versions"):
            row = getattr(self, name)
            if row is not None and len(row) != total and (name != "token_versions" or len(row)):
                self._fail(name, f"{len(row)} values", f"give one per token: {total}")
        turns = int(self.turn_counts.sum())
        if len(self.turn_counts) not in (0, count):
            self._fail("turn_counts", f"{len(self.turn_counts)} values", f"give none or {count}")
        for name, most in (("turn_tokens", 2 * turns), ("turn_texts", 2 * turns)):
            self._check(len(getattr(self, name)) == most, name, getattr(self, name), f"give {most}")
        fix = f"give one per turn: {turns}"
        self._check(len(self.turn_rewards) == turns, "turn_rewards", self.turn_rewards, fix)

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
        first, last = (int(self.turn_counts[:end].sum()) for end in (k, k + 1))
        return [
            tuple(turn)
            for turn in getattr(self, unit)[2 * first : 2 * last].reshape(-1, 2).tolist()
        ]

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
        at_tokens = np.repeat(chosen, self.lengths)
        at_turns = np.repeat(chosen, self.turn_counts) if len(self.turn_counts) else None
        fields = {name: getattr(self, name)[chosen] for name in _OF_COMPLETIONS}
        for name in ("tokens", "mask", *LOGPROB_FIELDS, "token_versions"):
            row = getattr(self, name)
            fields[name] = row[at_tokens] if row is not None and len(row) else row
        if at_turns is not None:
            fields["turn_counts"] = self.turn_counts[chosen]
            fields["turn_rewards"] = self.turn_rewards[at_turns]
            for name in ("turn_tokens", "turn_texts"):
                fields[name] = getattr(self, name)[np.repeat(at_turns, 2)]
        for name in ("texts", "finish_reasons", "sources"):
            fields[name] = [getattr(self, name)[k] for k in np.flatnonzero(chosen)]
        components = {name: row[chosen] for name, row in self.components.items()}
        # Lists are of the completions.
        extra = {name: value for name, value in self.extra.items() if not isinstance(value, list)}
        return dataclasses.replace(self, **fields, components=components, extra=extra)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return all(
            _same(getattr(self, field.name), getattr(other, field.name))
            for field in dataclasses.fields(self)
        )

    __hash__ = None

    def _number(self, name: str, value: Any, dtype: type) -> int | float:
        """Returns a scalar, also numpy's and jax's, as Python's own int or float."""
        if type(value) is float and dtype.kind == "f":
            return value
        if type(value) is int and dtype.kind == "i" and -(2**63) <= value < 2**63:
            return value
        if np.ndim(value) != 0:
            self._fail(name, repr(value), "give one number")
        return self._array(name, [value], dtype)[0].item()

    def _array(self, name: str, values: Any, dtype: type) -> np.ndarray:
        if isinstance(values, np.ndarray) and values.dtype == dtype and values.ndim == 1:
            return np.ascontiguousarray(values)
        try:
            array = np.asarray(values)
            if array.dtype.kind == "V":  # bfloat16 and its kin
                array = array.astype(np.float32)
            if array.size and array.dtype.kind not in "iubf":
                raise ValueError("not numbers")
            if array.size and np.dtype(dtype).kind in "iu":
                if array.dtype.kind == "f" and not (array == np.trunc(array)).all():
                    raise ValueError("not whole numbers")
                if array.min() < np.iinfo(dtype).min or array.max() > np.iinfo(dtype).max:
                    raise ValueError("out of range")
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self._fail(
                name,
                reprlib.repr(values),
                f"give a flat list of {np.dtype(dtype).name} numbers ({error})",
            )
        if array.ndim != 1:
            self._fail(name, f"an array of shape {array.shape}", "give a one-dimensional array")
        with np.errstate(over="ignore"):  # too large for float32: infinite, refused by `validate`
            return np.ascontiguousarray(array, dtype)

    def _check(self, right: Any, name: str, value: Any, fix: str) -> None:
        if not right:
            value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            self._fail(name, repr(value), fix)

    def _fail(self, name: str, shown: str, fix: str) -> None:
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise DataError(f"Group {self.group_id!r}: field {name} is wrong ({shown}); {fix}.")


def json_number(value: Any) -> float | None:
    """Returns a reward or component as a value of JSON: None, which is null, for NaN."""
    return None if np.isnan(value) else float(value)


def correctness(groups: Sequence[Group]) -> list[Bool[np.ndarray, " judged"]] | None:
    """Returns `Group.correct` of each group's completions that have a verdict; None if it is
    unknown for any group, as shares of the others would mislead.
    """
    rows = [group.correct for group in groups]
    if any(row is None for row in rows):
        return None
    return [row[group.judged] for row, group in zip(rows, groups, strict=True)]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            _same(value, right[key]) for key, value in left.items()
        )
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(
            left, right, equal_nan=left.dtype.kind == "f"
        )
    return type(left) is type(right) and left == right


# Arrays with an entry for each completion.
_OF_COMPLETIONS = ("lengths", "rewards", "policy_version", "is_expert")
# Whose log-probs stored groups can carry besides the behaviour policy's, and in which field.
STORED_FIELDS = {"reference": "ref_logprobs", "proximal": "prox_logprobs"}
