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
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from grre_jax.errors import DataError
from grre_jax.rollouts.schema import GROUP_FIELDS, LOGPROB_FIELDS, Group
from grre_jax.tasks.judging import FAILED_REWARD, FIELD

_JSON = ("list", "extra")  # kinds of fields that a record has as JSON


def _fields() -> Iterator[tuple[str, str]]:
    for field in GROUP_FIELDS:
        if field.name == "texts":
            yield "texts", "uint8"  # UTF-8, one after the other
            yield "text_lengths", "int32"  # in bytes
        elif field.kind == "components":
            yield "component_names", "text"  # JSON
            yield "components", "float32"  # a row per name, one after the other
        else:
            yield field.name, "text" if field.kind in _JSON else field.kind


# Name and kind of each feature: text, int64, float64, or the dtype of a 1-D array.
FIELDS = tuple(_fields())
CHECKSUM = "checksum"  # CRC-32 of the other features, in the order of their names


@functools.cache
def features() -> Any:
    """Returns the record's layout as a `tfds.features.FeaturesDict` (imports TensorFlow Datasets,
    not TensorFlow).
    """
    import tensorflow_datasets as tfds

    layout = {}
    for name, kind in (*FIELDS, (CHECKSUM, "int64")):
        if kind == "text":
            layout[name] = tfds.features.Text()
        elif kind == "int64":
            layout[name] = tfds.features.Scalar(np.int64)
        else:
            layout[name] = tfds.features.Tensor(
                shape=() if kind == "float64" else (None,),
                dtype=np.dtype(kind),
                # About ten times as fast as tf.train.Example's lists of numbers, and exact.
                encoding=tfds.features.Encoding.BYTES,
            )
    return tfds.features.FeaturesDict(layout)


def import_libraries() -> None:
    """Imports what reads and writes rollouts.

    TensorFlow Datasets and Grain replace `__import__` in all threads while they are imported, and
    JAX imports as it traces: call this before one thread traces and another reads or writes.
    """
    import grain  # noqa: F401

    features()


def encode(group: Group) -> bytes:
    """Returns a group as a serialised `tf.train.Example` with its checksum.

    Raises:
        DataError: `extra` contains a value that is not JSON.
    """
    contents = _contents(group)
    example = _example_proto()()
    feature = example.features.feature
    for name, kind in FIELDS:
        if kind == "int64":
            feature[name].int64_list.value.extend(np.frombuffer(contents[name], kind))
        else:
            feature[name].bytes_list.value.append(contents[name])
    feature[CHECKSUM].int64_list.value.append(_checksum(contents))
    # Else in an order that changes from process to process.
    return example.SerializeToString(deterministic=True)


def _contents(group: Group) -> dict[str, bytes]:
    """Returns the bytes of each feature, of numbers little-endian."""
    contents: dict[str, bytes] = {}
    for field in GROUP_FIELDS:
        value = getattr(group, field.name)
        if field.name == "texts":
            # JSON may hold half of a surrogate pair, which strict UTF-8 refuses.
            texts = [text.encode("utf-8", "surrogatepass") for text in value]
            contents["texts"] = b"".join(texts)
            contents["text_lengths"] = np.asarray(list(map(len, texts)), np.int32).tobytes()
        elif field.kind == "components":
            contents["component_names"] = json.dumps(list(value)).encode()
            contents["components"] = b"".join(row.tobytes() for row in value.values())
        elif field.kind in _JSON:
            try:
                contents[field.name] = json.dumps(value).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise DataError(
                    f"Group {group.group_id!r}: field {field.name}: expected JSON values ({error})."
                ) from error
        elif field.kind == "text":
            contents[field.name] = value.encode("utf-8", "surrogatepass")
        else:
            contents[field.name] = b"" if value is None else np.asarray(value, field.kind).tobytes()
    return contents


def decode(data: bytes) -> Group:
    """Returns the group of a serialised example, without features of a newer minor version.

    Raises:
        DataError: the bytes are not a record or fail their checksum, or the arrays do not fit each
            other.
    """
    from google.protobuf.message import DecodeError

    try:
        feature = dict(_example_proto().FromString(data).features.feature)
    except DecodeError as error:
        raise DataError(f"not a rollout record ({error})") from error
    if CHECKSUM not in feature:
        raise DataError("no checksum in the record")
    stored = feature.pop(CHECKSUM).int64_list.value[0]
    contents = {}
    for name, value in feature.items():
        if value.WhichOneof("kind") == "int64_list":
            contents[name] = np.asarray(value.int64_list.value, np.int64).tobytes()
        else:
            contents[name] = b"".join(value.bytes_list.value)
    # Over all features, also those of a newer minor version that are not read.
    if stored != _checksum(contents):
        raise DataError(
            f"the record's content does not have the checksum {stored:08x} stored with it"
        )
    try:
        return _group(contents)
    except (ValueError, KeyError, IndexError) as error:  # of another program, checksum included
        raise DataError(f"not a rollout group ({error!r})") from error


def _group(contents: dict[str, bytes]) -> Group:
    """Returns the group of the bytes of features. A field that is absent (an older minor version)
    gets the value it has in a record of unknown origin.
    """
    # Not through __init__: the record was validated when it was written and its checksum says that
    # it is still that record; a newer minor version may also have, say, a finish reason that this
    # one lacks. Only what indexing relies on is checked again.
    group = Group.__new__(Group)
    blob = contents["texts"]
    ends = np.cumsum(np.frombuffer(contents["text_lengths"], np.int32)).tolist()
    spans = zip([0, *ends], ends, strict=False)
    group.texts = [blob[start:end].decode("utf-8", "surrogatepass") for start, end in spans]
    group.tokens = np.frombuffer(contents["tokens"], np.int32)
    for field in GROUP_FIELDS:
        content = contents.get(field.name)
        if content is None:
            value = group.absent(field)
        elif field.name == "texts":
            continue
        elif field.kind == "components":
            names = json.loads(contents["component_names"])
            rows = np.frombuffer(content, np.float32).reshape(len(names), -1) if names else ()
            value = dict(zip(names, rows, strict=True))
        elif field.kind in _JSON:
            value = json.loads(content)
        elif field.kind == "text":
            value = content.decode("utf-8", "surrogatepass")
        elif not field.dimension:
            value = np.frombuffer(content, field.kind)[0].item()
        elif field.name in LOGPROB_FIELDS and not content:
            value = None
        else:
            value = np.frombuffer(content, field.kind)
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


def _checksum(contents: dict[str, bytes]) -> int:
    """Returns the CRC-32 of the name, the length and the content of every feature, by name."""
    crc = 0
    for name in sorted(contents):
        content = contents[name]
        # With the lengths, so that bytes moved from one feature to another change it.
        crc = zlib.crc32(b"%s\0%d\0%s" % (name.encode(), len(content), content), crc)
    return crc


@functools.cache
def _example_proto() -> Any:
    """Returns the protobuf class of an example, imported on first use: TensorFlow Datasets, which
    has it, is slow to import.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    return tf_example_pb2.Example
