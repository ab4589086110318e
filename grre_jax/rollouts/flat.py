"""A group as the flat record that is stored, and back: nested lists become one array with their lengths, lists of text JSON."""

import json
import reprlib
from typing import Any

import numpy as np

from grre_jax.rollouts import schema


def to_record(group: schema.Group) -> dict[str, Any]:
    """The group as the flat record of FIELDS.

    Returns:
      A dict with a value for each name in FIELDS: str for text, int, float, or a 1-D array of the field's dtype.
    """
    texts = [text.encode("utf-8", "surrogatepass") for text in group.texts]
    record = {name: getattr(group, name) for name, _, _ in schema.FIELDS if name not in _DERIVED}
    for name in schema.LOGPROB_FIELDS:
        record[name] = _EMPTY if record[name] is None else record[name]
    record["texts"] = np.frombuffer(b"".join(texts), np.uint8)
    record["text_lengths"] = np.asarray([len(text) for text in texts], np.int32)
    record["component_names"] = json.dumps(list(group.components))
    record["components"] = np.concatenate(list(group.components.values())) if group.components else _EMPTY
    record["finish_reasons"] = json.dumps(group.finish_reasons)
    record["sources"] = json.dumps(group.sources)
    try:
        record["extra"] = json.dumps(group.extra)
    except (TypeError, ValueError, RecursionError) as error:
        group._fail("extra", reprlib.repr(group.extra), f"keep only what JSON can hold ({error})")
    return record


def from_record(record: dict[str, Any], unknown: dict[str, bytes] | None = None) -> schema.Group:
    """The group of a flat record, as `to_record` gives it or as `tfds.builder_from_directory(...).as_data_source()` yields it.

    Args:
      record: values by name; texts as str or UTF-8 bytes. Names that FIELDS does not have are ignored; a field that is absent (an older
        minor version) gets the value it has in a record of unknown origin.
      unknown: serialised features of a newer minor version, to carry along.

    Raises:
      DataError: the arrays do not fit each other.
    """
    values = {name: _plain(kind, record[name]) for name, kind, _ in schema.FIELDS if name in record}
    count = len(values["rewards"])
    values = _absent(count, len(values["tokens"])) | values
    for name in ("finish_reasons", "sources", "component_names", "extra"):
        if isinstance(values[name], str):
            values[name] = json.loads(values[name])
    blob, ends = values["texts"].tobytes(), np.cumsum(values["text_lengths"]).tolist()
    values["texts"] = [blob[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *ends], ends, strict=False)]
    names = values.pop("component_names")
    values["components"] = dict(zip(names, values["components"].reshape(len(names), count) if names else (), strict=True))
    for name in schema.LOGPROB_FIELDS:
        values[name] = values[name] if len(values[name]) else None
    del values["text_lengths"]
    # Not through __init__: the record was validated when it was written and its checksum says that it is still that record; a newer
    # minor version may also know, say, a finish reason that this one does not. Only what indexing relies on is checked again.
    group = schema.Group.__new__(schema.Group)
    group.__dict__.update(values, unknown=dict(unknown or {}))
    group.validate_shapes()
    return group


_EMPTY = np.zeros(0, np.float32)
_DERIVED = ("texts", "text_lengths", "component_names", "components", "finish_reasons", "sources", "extra")


def _absent(count: int, total: int) -> dict[str, Any]:
    """Values of fields that a record does not have."""
    values: dict[str, Any] = {"text": "", "int": -1, "float": 1.0}
    defaults = {name: values[kind] if kind in values else np.zeros(0, kind) for name, kind, _ in schema.FIELDS}
    return defaults | {
        "attempt": 0,
        "top_k": 0,
        "lengths": np.zeros(count, np.int32),
        "mask": np.ones(total, np.uint8),
        "policy_version": np.full(count, -1, np.int32),
        "is_expert": np.zeros(count, np.uint8),
        "min_p": 0.0,
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
