"""A group as the bytes of one ArrayRecord record: a `tf.train.Example` in TFDS's layout, with a
checksum of its own.

The example is built from TensorFlow Datasets' protobuf classes directly: `features()` is the same
layout as TFDS' own description, which is written to features.json, and the tests read every record
back through TFDS. ArrayRecord checks its chunks by itself; the checksum inside the record also
covers a record that was copied from one file to another.
"""

import functools
import json
import reprlib
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.errors import DataError
from grre_jax.rollouts import schema
from grre_jax.tasks.judging import FAILED_REWARD, FIELD


def to_record(group: schema.Group) -> dict[str, Any]:
    """Returns a group as a flat record of FIELDS.

    Returns:
        A dict with a value for each name in FIELDS: str for text, int, float, or a 1-D array of the
            field's dtype.
    """
    texts = [text.encode("utf-8", "surrogatepass") for text in group.texts]
    names = (name for name, _, _ in schema.FIELDS if name not in schema.ENCODED)
    record = {name: getattr(group, name) for name in names}
    for name in schema.LOGPROB_FIELDS:
        record[name] = _EMPTY if record[name] is None else record[name]
    record["texts"] = np.frombuffer(b"".join(texts), np.uint8)
    record["text_lengths"] = np.asarray([len(text) for text in texts], np.int32)
    record["component_names"] = json.dumps(list(group.components))
    record["components"] = (
        np.concatenate(list(group.components.values())) if group.components else _EMPTY
    )
    record["finish_reasons"] = json.dumps(group.finish_reasons)
    record["sources"] = json.dumps(group.sources)
    try:
        record["extra"] = json.dumps(group.extra)
    except (TypeError, ValueError, RecursionError) as error:
        group._fail("extra", reprlib.repr(group.extra), f"keep only JSON values ({error})")
    return record


def from_record(record: dict[str, Any]) -> schema.Group:
    """Returns the group of a flat record, as `to_record` or
    `tfds.builder_from_directory(...).as_data_source()` returns it.

    Args:
        record: values by name; texts as str or UTF-8 bytes. Names that FIELDS does not have are
            ignored; a field that is absent (an older minor version) gets the value it has in a
            record of unknown origin.

    Raises:
        DataError: the arrays do not fit each other.
    """
    values = {name: _plain(kind, record[name]) for name, kind, _ in schema.FIELDS if name in record}
    count = len(values["rewards"])
    if len(values) < len(schema.FIELDS):
        total, lengths = len(values["tokens"]), np.zeros(count, np.int32)
        known = {"rewards": lengths, "tokens": np.zeros(total), "lengths": [total, *lengths[1:]]}
        unknown_origin = schema.Group(group_id="", prompt="", texts=[""] * count, **known)
        values = to_record(unknown_origin) | {"lengths": lengths} | values
    for name in ("finish_reasons", "sources", "component_names", "extra"):
        values[name] = json.loads(values[name])
    blob, ends = values["texts"].tobytes(), np.cumsum(values["text_lengths"]).tolist()
    values["texts"] = [
        blob[start:end].decode("utf-8", "surrogatepass")
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    names = values.pop("component_names")
    values["components"] = dict(
        zip(names, values["components"].reshape(len(names), count) if names else (), strict=True)
    )
    for name in schema.LOGPROB_FIELDS:
        values[name] = values[name] if len(values[name]) else None
    del values["text_lengths"]
    # Not through __init__: the record was validated when it was written and its checksum says that
    # it is still that record; a newer minor version may also know, say, a finish reason that this
    # one does not. Only what indexing relies on is checked again.
    group = schema.Group.__new__(schema.Group)
    group.__dict__.update(values)
    group.validate_shapes()
    failures = group.extra.get(FIELD)
    if failures and FAILED_REWARD not in group.extra:
        # Before 1.3 a completion without a verdict had the reward 0.
        absent = [bool(failure) for failure in failures]
        group.rewards = np.where(absent, np.float32(np.nan), group.rewards)
        group.components = {
            name: np.where(absent, np.float32(np.nan), row)
            for name, row in group.components.items()
        }
    return group


_EMPTY = np.zeros(0, np.float32)


def _plain(kind: str, value: Any) -> Any:
    """Returns a record's value as Python's own type, or as an array."""
    if kind == "text":
        return value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogatepass")
    if kind == "int":
        return int(value)
    return float(value) if kind == "float" else value


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
        if kind == "int":
            return tfds.features.Scalar(np.int64, doc=meaning)
        shape, dtype = ((), np.float64) if kind == "float" else ((None,), np.dtype(kind))
        return tfds.features.Tensor(shape=shape, dtype=dtype, encoding=raw, doc=meaning)

    spec = {name: feature(kind, meaning) for name, kind, meaning in schema.FIELDS}
    about = "CRC-32 of the other features, in the order of their names."
    spec[CHECKSUM] = feature("int", about)
    return tfds.features.FeaturesDict(spec)


@functools.cache
def features_json() -> bytes:
    """Returns the layout as TFDS writes it to features.json. It is the same for every data set, and
    making it takes a tenth of the time to write one.
    """
    with tempfile.TemporaryDirectory() as folder:
        features().save_config(folder)
        (written,) = Path(folder).iterdir()
        return written.read_bytes()


def encode(group: schema.Group) -> bytes:
    """Returns a group as a serialised `tf.train.Example` with its checksum."""
    record = to_record(group)
    example = _example_proto()()
    feature = example.features.feature
    contents = {}
    for name, kind, _ in schema.FIELDS:
        value = record[name]
        if kind == "int":
            feature[name].int64_list.value.append(value)
            contents[name] = struct.pack("<q", value)
            continue
        if kind == "text":
            contents[name] = value.encode("utf-8", "surrogatepass")
        else:
            contents[name] = struct.pack("<d", value) if kind == "float" else value.tobytes()
        feature[name].bytes_list.value.append(contents[name])
    feature[CHECKSUM].int64_list.value.append(_checksum(contents))
    # Else in an order that changes from process to process.
    return example.SerializeToString(deterministic=True)


def decode(data: bytes) -> schema.Group:
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
    contents = {name: _content(value) for name, value in feature.items()}
    if stored != _checksum(contents):
        raise CorruptRecord(
            f"the record's content does not have the checksum {stored:08x} stored with it"
        )
    try:
        record = {
            name: _value(kind, contents[name])
            for name, kind, _ in schema.FIELDS
            if name in contents
        }
        return from_record(record)
    except (ValueError, KeyError, struct.error) as error:  # of another program, checksum included
        raise CorruptRecord(f"not a rollout group ({error!r})") from error


def _value(kind: str, content: bytes) -> Any:
    if kind in ("int", "float"):
        return struct.unpack("<q" if kind == "int" else "<d", content)[0]
    return content if kind == "text" else np.frombuffer(content, kind)


def _content(value: Any) -> bytes:
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
