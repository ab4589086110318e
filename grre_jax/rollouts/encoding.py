"""A group as the bytes of one ArrayRecord record: a `tf.train.Example` in TFDS's layout, with a
checksum of its own.

The example is built from TensorFlow Datasets' protobuf classes directly: `features()` is the same
layout as TFDS' own description, which is written to features.json, and the tests read every record
back through TFDS. A record is flat (nested ragged features cannot be written without TensorFlow).
ArrayRecord checks its chunks by itself; the checksum inside the record also covers a record that
was copied from one file to another.
"""

import functools
import json
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.errors import DataError
from grre_jax.rollouts.schema import GROUP_FIELDS, LOGPROB_FIELDS, Group
from grre_jax.tasks.judging import FAILED_REWARD, FIELD

_JSON = ("list", "extra")  # kinds of fields that a record has as JSON


def _fields() -> Iterator[tuple[str, str, str]]:
    for field in GROUP_FIELDS:
        meaning = field.meaning[0].upper() + field.meaning[1:]
        if field.name == "texts":
            yield "texts", "uint8", "UTF-8 bytes of all completions' texts, one after the other."
            yield "text_lengths", "int32", "Bytes of each completion's text."
        elif field.kind == "components":
            yield "component_names", "text", "JSON list: names of the reward components."
            yield field.name, "float32", f"{meaning} A row per name, one after the other."
        elif field.kind in _JSON:
            yield field.name, "text", f"JSON: {field.meaning}"
        else:
            yield field.name, field.kind, meaning


# Name, kind (text, int64, float64, or the dtype of a 1-D array) and meaning of each feature.
FIELDS = tuple(_fields())


def to_record(group: Group) -> dict[str, Any]:
    """Returns a group as a flat record of FIELDS.

    Returns:
        A dict with a value for each name in FIELDS: str for text, int, float, or a 1-D array of the
            field's dtype; an empty one for log-probs that are unknown.

    Raises:
        DataError: `extra` contains a value that is not JSON.
    """
    texts = [text.encode("utf-8", "surrogatepass") for text in group.texts]
    record: dict[str, Any] = {}
    for field in GROUP_FIELDS:
        value = getattr(group, field.name)
        if field.name == "texts":
            value = np.frombuffer(b"".join(texts), np.uint8)
        elif field.kind == "components":
            value = np.concatenate([_EMPTY, *value.values()])
        elif field.kind in _JSON:
            value = _json(group, field.name, value)
        record[field.name] = _EMPTY if value is None else value
    record["text_lengths"] = np.asarray([len(text) for text in texts], np.int32)
    record["component_names"] = json.dumps(list(group.components))
    return record


def _json(group: Group, name: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        group._check(False, name, f"JSON values ({error})", value)
        raise AssertionError("unreachable") from error


def from_record(record: dict[str, Any]) -> Group:
    """Returns the group of a flat record, as `to_record` or
    `tfds.builder_from_directory(...).as_data_source()` returns it.

    Args:
        record: values by name; texts as str or UTF-8 bytes. Names that FIELDS does not have are
            ignored; a field that is absent (an older minor version) gets the value it has in a
            record of unknown origin.

    Raises:
        DataError: the arrays do not fit each other.
    """
    # Not through __init__: the record was validated when it was written and its checksum says that
    # it is still that record; a newer minor version may also have, say, a finish reason that this
    # one lacks. Only what indexing relies on is checked again.
    group = Group.__new__(Group)
    blob = record["texts"].tobytes()
    ends = np.cumsum(record["text_lengths"]).tolist()
    spans = zip([0, *ends], ends, strict=False)
    group.texts = [blob[start:end].decode("utf-8", "surrogatepass") for start, end in spans]
    group.tokens = record["tokens"]
    for field in GROUP_FIELDS:
        if field.name not in record:
            value = group.absent(field)
        elif field.name == "texts":
            continue
        elif field.kind == "components":
            names = json.loads(record["component_names"])
            rows = record["components"].reshape(len(names), len(group.texts)) if names else ()
            value = dict(zip(names, rows, strict=True))
        elif field.kind in _JSON:
            value = json.loads(record[field.name])
        else:
            value = record[field.name]
            if isinstance(value, bytes):
                value = value.decode("utf-8", "surrogatepass")
            elif not field.dimension:
                value = type(getattr(Group, field.name, ""))(value)
            elif field.name in LOGPROB_FIELDS and not len(value):
                value = None
        setattr(group, field.name, value)
    group.validate_shapes()
    if group.extra.get(FIELD) and FAILED_REWARD not in group.extra:
        # Before 1.3 a completion without a verdict had the reward 0.
        absent = [bool(failure) for failure in group.extra[FIELD]]
        nan = np.float32(np.nan)
        group.rewards = np.where(absent, nan, group.rewards)
        rows = group.components.items()
        group.components = {name: np.where(absent, nan, row) for name, row in rows}
    return group


_EMPTY = np.zeros(0, np.float32)

CHECKSUM = "checksum"


class CorruptRecord(DataError):
    """A record that is not as it was written.

    Attributes:
        file: path of the shard, once known.
        record: number of the record in that shard, from 0, once known.
    """

    def __init__(self, message: str, file: str = "", record: int = -1) -> None:
        super().__init__(message)
        self.file, self.record = file, record


@functools.cache
def features() -> Any:
    """Returns the record's layout as a `tfds.features.FeaturesDict` (imports TensorFlow Datasets,
    not TensorFlow).
    """
    import tensorflow_datasets as tfds

    # About ten times as fast as tf.train.Example's lists of numbers, and exact.
    raw = tfds.features.Encoding.BYTES

    def feature(kind: str, meaning: str) -> Any:
        if kind == "text":
            return tfds.features.Text(doc=meaning)
        if kind == "int64":
            return tfds.features.Scalar(np.int64, doc=meaning)
        shape = () if kind == "float64" else (None,)
        return tfds.features.Tensor(shape=shape, dtype=np.dtype(kind), encoding=raw, doc=meaning)

    layout = {name: feature(kind, meaning) for name, kind, meaning in FIELDS}
    meaning = "CRC-32 of the other features, in the order of their names."
    return tfds.features.FeaturesDict(layout | {CHECKSUM: feature("int64", meaning)})


@functools.cache
def features_json() -> bytes:
    """Returns the layout as TFDS writes it to features.json. It is the same for every data set, and
    making it takes a tenth of the time to write one.
    """
    with tempfile.TemporaryDirectory() as folder:
        features().save_config(folder)
        (written,) = Path(folder).iterdir()
        return written.read_bytes()


def encode(group: Group) -> bytes:
    """Returns a group as a serialised `tf.train.Example` with its checksum."""
    record = to_record(group)
    example = _example_proto()()
    feature = example.features.feature
    contents = {}
    for name, kind, _ in FIELDS:
        value = record[name]
        contents[name] = _content(kind, value)
        if kind == "int64":
            feature[name].int64_list.value.append(value)
        else:
            feature[name].bytes_list.value.append(contents[name])
    feature[CHECKSUM].int64_list.value.append(_checksum(contents))
    # Else in an order that changes from process to process.
    return example.SerializeToString(deterministic=True)


def decode(data: bytes) -> Group:
    """Returns the group of a serialised example, without features of a newer minor version.

    Raises:
        CorruptRecord: the bytes are not a record, or fail their checksum.
    """
    from google.protobuf.message import DecodeError

    try:
        feature = dict(_example_proto().FromString(data).features.feature)
    except DecodeError as error:
        raise CorruptRecord(f"not a rollout record ({error})") from error
    if CHECKSUM not in feature:
        raise CorruptRecord("no checksum in the record")
    stored = feature.pop(CHECKSUM).int64_list.value[0]
    contents = {name: _feature_content(value) for name, value in feature.items()}
    if stored != _checksum(contents):
        raise CorruptRecord(
            f"the record's content does not have the checksum {stored:08x} stored with it"
        )
    known = [(name, kind) for name, kind, _ in FIELDS if name in contents]
    try:
        return from_record({name: _value(kind, contents[name]) for name, kind in known})
    except (ValueError, KeyError, struct.error) as error:  # of another program, checksum included
        raise CorruptRecord(f"not a rollout group ({error!r})") from error


_SCALARS = {"int64": "<q", "float64": "<d"}


def _content(kind: str, value: Any) -> bytes:
    """Returns the bytes of a value: of a number little-endian."""
    if kind == "text":
        return value.encode("utf-8", "surrogatepass")
    return struct.pack(_SCALARS[kind], value) if kind in _SCALARS else value.tobytes()


def _value(kind: str, content: bytes) -> Any:
    if kind == "text":
        return content.decode("utf-8", "surrogatepass")
    if kind in _SCALARS:
        return struct.unpack(_SCALARS[kind], content)[0]
    return np.frombuffer(content, kind)


def _feature_content(value: Any) -> bytes:
    """Returns the bytes of a feature: an integer's little-endian."""
    if value.WhichOneof("kind") == "int64_list":
        return np.asarray(value.int64_list.value, "<i8").tobytes()
    return b"".join(value.bytes_list.value)


def _checksum(contents: dict[str, bytes]) -> int:
    """Returns the CRC-32 of the name, the length and the content of every feature, by name."""
    crc = 0
    for name in sorted(contents):
        content = contents[name]
        crc = zlib.crc32(b"%s\0%d\0%s" % (name.encode(), len(content), content), crc)
    return crc


@functools.cache
def _example_proto() -> Any:
    """Returns the protobuf class of an example, imported on first use: TensorFlow Datasets, which
    has it, is slow to import.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    return tf_example_pb2.Example
