"""What a rollout record is: one prompt, its K completions, and everything needed to train on them again later.

A group is the unit of everything in the rollout folder: it is written, shuffled, weighted and trained as a whole, because a
group-relative advantage means nothing without the other completions. Advantages are derived and never stored.

Token arrays are flat: the K completions one after the other, `lengths[k]` tokens each. On disk a group is a flat record, one feature of
a TFDS example per row of `FIELDS` (nested ragged features cannot be written without TensorFlow).
"""

import dataclasses
import json
import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from grre_jax.errors import DataError

SCHEMA_VERSION = "1.0.0"  # a reader of 1.x reads every 1.y, keeping fields that it does not know; 2.0.0 would be refused
FINISH_REASONS = ("stop", "length", "imported")  # ended with an EOS token; cut at the token limit; unknown, came from elsewhere
LOGPROB_FIELDS = ("behavior_logprobs", "sampling_logprobs", "policy_logprobs")

# name, kind, meaning. Kinds: "text" (UTF-8), "int" (int64), "float" (float64), or the dtype of a 1-D array stored as raw bytes.
FIELDS: tuple[tuple[str, str, str], ...] = (
    ("group_id", "text", "Identifier of the group."),
    ("position", "int", "Place in the prompt stream, -1 for imported groups."),
    ("attempt", "int", "Which sampling of that position, from 0."),
    ("task", "text", "Name of the task that asked the question."),
    ("question_id", "text", "Identifier of the question within its task."),
    ("prompt", "text", "The prompt's text."),
    ("answer", "text", "The question's true answer."),
    ("prompt_tokens", "int32", "Token ids of the prompt; empty when the record holds text only."),
    ("lengths", "int32", "Tokens of each completion, EOS included; 0 when the record holds text only."),
    ("tokens", "int32", "Token ids of all completions, one after the other."),
    ("mask", "uint8", "1 where the policy generated the token, 0 elsewhere (an observation)."),
    ("texts", "uint8", "UTF-8 bytes of all completions' texts, one after the other."),
    ("text_lengths", "int32", "Bytes of each completion's text."),
    ("rewards", "float32", "Reward of each completion."),
    ("component_names", "text", "JSON list: names of the reward components."),
    ("components", "float32", "Reward components, one completion-long row per name."),
    ("finish_reasons", "text", "JSON list: why each completion ended (stop, length, imported)."),
    ("behavior_logprobs", "float32", "Log-prob of each token at the sampling temperature over the full vocabulary; empty when unknown."),
    ("sampling_logprobs", "float32", "Log-prob of each token in the distribution drawn from, truncation included; empty when unknown."),
    ("policy_logprobs", "float32", "Log-prob of each token at temperature 1 over the full vocabulary; empty when unknown."),
    ("policy_version", "int32", "Version of the policy that generated each completion, -1 when unknown."),
    ("sources", "text", "JSON list: who generated each completion; empty string for the run's own policy."),
    ("temperature", "float", "Sampling temperature."),
    ("top_k", "int", "Top-k truncation, 0 for none."),
    ("top_p", "float", "Top-p (nucleus) truncation, 1 for none."),
    ("seed", "int", "Seed that the random draws were addressed from, -1 when unknown."),
    ("extra", "text", "JSON object: whatever else the record's source said."),
)


@dataclasses.dataclass(kw_only=True, eq=False)
class Group:
    """One prompt with its K completions, T tokens in all.

    Array-likes are converted; what is left out gets the value of a text-only record of unknown origin. Arrays read from disk are
    read-only views: use `dataclasses.replace` to change a group.

    Attributes:
      group_id: identifier of the group.
      prompt: the prompt's text.
      texts: text of each completion (K).
      rewards: reward of each completion [K].
      position: place in the prompt stream, -1 for imported groups.
      attempt: which sampling of that position, from 0.
      task, question_id, answer: the question's task, its identifier there and its true answer.
      prompt_tokens: token ids of the prompt [P]; empty in a text-only record, which the learner tokenises.
      lengths: tokens of each completion, EOS included [K]; zeros in a text-only record.
      tokens: token ids of the completions, one after the other [T].
      mask: 1 where the policy generated the token [T].
      components: reward components by name, each [K].
      finish_reasons: one of FINISH_REASONS per completion (K).
      behavior_logprobs: at the sampling temperature, full vocabulary [T], or None: what importance ratios use.
      sampling_logprobs: in the distribution drawn from, after temperature and truncation [T], or None.
      policy_logprobs: at temperature 1, full vocabulary [T], or None.
      policy_version: version of the policy that generated each completion [K], -1 when unknown.
      sources: who generated each completion (K), "" for the run's own policy.
      temperature, top_k, top_p, seed: the sampling settings (top_k 0: none; top_p 1: none; seed -1: unknown).
      extra: anything else that JSON can hold.
      unknown: serialised features of a newer minor schema version by name, carried along untouched.

    Raises:
      DataError: a field is missing, misshapen or out of its domain; the message names group, field, value and fix.
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
    components: dict[str, Float[np.ndarray, " completions"]] = dataclasses.field(default_factory=dict)
    finish_reasons: list[str] | None = None
    behavior_logprobs: Float[np.ndarray, " tokens"] | None = None
    sampling_logprobs: Float[np.ndarray, " tokens"] | None = None
    policy_logprobs: Float[np.ndarray, " tokens"] | None = None
    policy_version: Int[np.ndarray, " completions"] | None = None
    sources: list[str] | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = -1
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    unknown: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.texts = list(self.texts)
        count = len(self.texts)
        self.rewards = self._array("rewards", self.rewards, np.float32)
        self.prompt_tokens = self._array("prompt_tokens", [] if self.prompt_tokens is None else self.prompt_tokens, np.int32)
        self.tokens = self._array("tokens", [] if self.tokens is None else self.tokens, np.int32)
        self.lengths = self._array("lengths", np.zeros(count, np.int32) if self.lengths is None else self.lengths, np.int32)
        self.mask = self._array("mask", np.ones(len(self.tokens), np.uint8) if self.mask is None else self.mask, np.uint8)
        versions = np.full(count, -1, np.int32) if self.policy_version is None else self.policy_version
        self.policy_version = self._array("policy_version", versions, np.int32)
        self.components = {str(name): self._array(f"components[{name!r}]", row, np.float32) for name, row in self.components.items()}
        self.finish_reasons = ["imported"] * count if self.finish_reasons is None else list(self.finish_reasons)
        self.sources = [""] * count if self.sources is None else list(self.sources)
        for name in ("position", "attempt", "top_k", "seed"):
            setattr(self, name, self._number(name, getattr(self, name), np.int64))
        for name in ("temperature", "top_p"):
            setattr(self, name, self._number(name, getattr(self, name), np.float64))
        for name in LOGPROB_FIELDS:
            values = getattr(self, name)
            # An empty array says nothing that None does not, and on disk "none" is an empty array.
            absent = values is None or (np.size(values) == 0 and not len(self.tokens))
            setattr(self, name, None if absent else self._array(name, values, np.float32))
        self.validate()

    def validate(self) -> None:
        """Checks every field's shape and domain.

        Raises:
          DataError: naming group, field, value and fix.
        """
        self.validate_shapes()
        for name in ("group_id", "prompt", "answer", "task", "question_id"):
            if not isinstance(getattr(self, name), str):
                self._fail(name, repr(getattr(self, name)), "give a string")
        for name in ("texts", "sources"):
            for value in getattr(self, name):
                if not isinstance(value, str):
                    self._fail(name, repr(value), "give one string per completion")
        for reason in self.finish_reasons:
            if reason not in FINISH_REASONS:
                self._fail("finish_reasons", repr(reason), f"use one of {', '.join(FINISH_REASONS)}")
        for name, row in [("rewards", self.rewards), *((f"components[{n!r}]", r) for n, r in self.components.items())]:
            if not np.isfinite(row).all():
                self._fail(name, repr(row.tolist()), "give finite numbers")
        for name, least in (("prompt_tokens", 0), ("tokens", 0), ("policy_version", -1)):
            row = getattr(self, name)
            if row.size and row.min() < least:
                self._fail(name, repr(int(row.min())), f"give values of at least {least}")
        if self.mask.size and self.mask.max() > 1:
            self._fail("mask", repr(int(self.mask.max())), "use 1 for tokens that the policy generated and 0 for others")
        for name in LOGPROB_FIELDS:
            row = getattr(self, name)
            if row is None:
                continue
            wrong = row[(self.mask != 0) & ~(np.isfinite(row) & (row <= 1e-3))]  # 1e-3: rounding
            if wrong.size:
                self._fail(name, repr(float(wrong[0])), "log-probabilities of generated tokens are finite and at most 0")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            self._fail("temperature", repr(self.temperature), "give a finite number of at least 0")
        if not 0 < self.top_p <= 1:
            self._fail("top_p", repr(self.top_p), "give a number above 0 and at most 1 (1 for no truncation)")
        if self.top_k < 0:
            self._fail("top_k", repr(self.top_k), "give 0 (no truncation) or a positive number")

    def validate_shapes(self) -> None:
        """Checks that the arrays fit each other (the part of `validate` that reading from disk repeats).

        Raises:
          DataError: naming group, field, value and fix.
        """
        count, total = len(self.texts), len(self.tokens)
        if count == 0:
            self._fail("texts", "none", "a group holds at least one completion")
        for name in ("lengths", "rewards", "finish_reasons", "policy_version", "sources"):
            if len(getattr(self, name)) != count:
                self._fail(name, f"{len(getattr(self, name))} values", f"give one per completion: {count}")
        for name, row in self.components.items():
            if len(row) != count:
                self._fail(f"components[{name!r}]", f"{len(row)} values", f"give one per completion: {count}")
        if self.lengths.min() < 0 or int(self.lengths.sum(dtype=np.int64)) != total:
            self._fail("lengths", repr(self.lengths.tolist()), f"the completions' lengths must add up to the {total} tokens given")
        for name in ("mask", *LOGPROB_FIELDS):
            row = getattr(self, name)
            if row is not None and len(row) != total:
                self._fail(name, f"{len(row)} values", f"give one per token: {total}")

    @property
    def num_completions(self) -> int:
        """K, the number of completions."""
        return len(self.texts)

    @property
    def offsets(self) -> Int[np.ndarray, " completions_plus_1"]:
        """Where each completion starts in the token arrays, and where the last ends [K + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @property
    def has_signal(self) -> bool:
        """Whether the rewards differ: a group whose rewards are all equal has no group-relative advantage."""
        return bool(self.rewards.max() != self.rewards.min())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return all(_same(getattr(self, field.name), getattr(other, field.name)) for field in dataclasses.fields(self))

    __hash__ = None

    def _number(self, name: str, value: Any, dtype: type) -> int | float:
        """The value as Python's own int or float; numpy's and jax's scalars are taken too."""
        if np.ndim(value) != 0:
            self._fail(name, repr(value), "give one number")
        return self._array(name, [value], dtype)[0].item()

    def _array(self, name: str, values: Any, dtype: type) -> np.ndarray:
        try:
            array = np.asarray(values)
            if array.dtype.kind == "V":  # bfloat16 and its kin
                array = array.astype(np.float32)
            if array.size and array.dtype.kind not in "iubf":
                raise ValueError("not numbers")
            if array.size and np.issubdtype(dtype, np.integer):
                if array.dtype.kind == "f" and not (array == np.trunc(array)).all():
                    raise ValueError("not whole numbers")
                if array.min() < np.iinfo(dtype).min or array.max() > np.iinfo(dtype).max:
                    raise ValueError("out of range")
        except (ValueError, TypeError) as error:
            self._fail(name, repr(values), f"give a flat list of {np.dtype(dtype).name} numbers ({error})")
        if array.ndim != 1:
            self._fail(name, f"an array of shape {array.shape}", "give a one-dimensional array")
        return np.ascontiguousarray(array, dtype)

    def _fail(self, name: str, shown: str, fix: str) -> None:
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise DataError(f"Group {self.group_id!r}: field {name} is wrong ({shown}); {fix}.")


def to_record(group: Group) -> dict[str, Any]:
    """The group as the flat record of FIELDS.

    Returns:
      A dict with a value for each name in FIELDS: str for text, int, float, or a 1-D array of the field's dtype.
    """
    texts = [text.encode("utf-8", "surrogatepass") for text in group.texts]
    record = {name: getattr(group, name) for name, _, _ in FIELDS if name not in _DERIVED}
    for name in LOGPROB_FIELDS:
        record[name] = _EMPTY if record[name] is None else record[name]
    record["texts"] = np.frombuffer(b"".join(texts), np.uint8)
    record["text_lengths"] = np.asarray([len(text) for text in texts], np.int32)
    record["component_names"] = json.dumps(list(group.components))
    record["components"] = np.concatenate(list(group.components.values())) if group.components else _EMPTY
    record["finish_reasons"] = json.dumps(group.finish_reasons)
    record["sources"] = json.dumps(group.sources)
    try:
        record["extra"] = json.dumps(group.extra)
    except (TypeError, ValueError) as error:
        group._fail("extra", repr(group.extra), f"keep only what JSON can hold ({error})")
    return record


def from_record(record: dict[str, Any], unknown: dict[str, bytes] | None = None) -> Group:
    """The group of a flat record, as `to_record` gives it or as `tfds.builder_from_directory(...).as_data_source()` yields it.

    Args:
      record: values by name; texts as str or UTF-8 bytes. Names that FIELDS does not have are ignored; a field that is absent (an older
        minor version) gets the value it has in a record of unknown origin.
      unknown: serialised features of a newer minor version, to carry along.

    Raises:
      DataError: the arrays do not fit each other.
    """
    values = {name: _plain(kind, record[name]) for name, kind, _ in FIELDS if name in record}
    count = len(values["rewards"])
    values = _absent(count, len(values["tokens"])) | values
    for name in ("finish_reasons", "sources", "component_names", "extra"):
        if isinstance(values[name], str):
            values[name] = json.loads(values[name])
    blob, ends = values["texts"].tobytes(), np.cumsum(values["text_lengths"]).tolist()
    values["texts"] = [blob[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *ends], ends, strict=False)]
    names = values.pop("component_names")
    values["components"] = dict(zip(names, values["components"].reshape(len(names), count) if names else (), strict=True))
    for name in LOGPROB_FIELDS:
        values[name] = values[name] if len(values[name]) else None
    del values["text_lengths"]
    # Not through __init__: the record was validated when it was written and its checksum says that it is still that record; a newer
    # minor version may also know, say, a finish reason that this one does not. Only what indexing relies on is checked again.
    group = Group.__new__(Group)
    group.__dict__.update(values, unknown=dict(unknown or {}))
    group.validate_shapes()
    return group


_EMPTY = np.zeros(0, np.float32)
_DERIVED = ("texts", "text_lengths", "component_names", "components", "finish_reasons", "sources", "extra")


def _absent(count: int, total: int) -> dict[str, Any]:
    """Values of fields that a record does not have."""
    values: dict[str, Any] = {"text": "", "int": -1, "float": 1.0}
    defaults = {name: values[kind] if kind in values else np.zeros(0, kind) for name, kind, _ in FIELDS}
    return defaults | {
        "attempt": 0,
        "top_k": 0,
        "lengths": np.zeros(count, np.int32),
        "mask": np.ones(total, np.uint8),
        "policy_version": np.full(count, -1, np.int32),
        "finish_reasons": ["imported"] * count,
        "sources": [""] * count,
        "component_names": [],
        "extra": {},
    }


def _plain(kind: str, value: Any) -> Any:
    """A record's value as Python's own type, or the array it is."""
    if kind == "text":
        return value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogatepass")
    if kind == "int":
        return int(value)
    return float(value) if kind == "float" else value


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(value, right[key]) for key, value in left.items())
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    return type(left) is type(right) and left == right
