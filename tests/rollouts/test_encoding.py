import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts import encoding
from grre_jax.rollouts import encoding as record

from ..groups import add_field


def test_every_process_writes_the_same_bytes():
    """A protobuf map has another order in another process: the same group would be another
    record there.
    """
    code = """
from grre_jax import rollouts
from grre_jax.rollouts import encoding as record
import sys
sys.stdout.buffer.write(record.encode(rollouts.Group(group_id="a", prompt="p", texts=["t"], rewards=[1])))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    group = rollouts.Group(group_id="a", prompt="p", texts=["t"], rewards=[1])
    assert done.stdout == record.encode(group)


def test_an_older_record_has_its_features_in_any_order(make_group):
    from tensorflow_datasets.proto import tf_example_pb2

    data = record.encode(make_group(4))
    features = tf_example_pb2.Example.FromString(data).features.feature
    shuffled = b""
    for name in sorted(features, reverse=True):
        one = tf_example_pb2.Example()
        one.features.feature[name].CopyFrom(features[name])
        shuffled += one.SerializeToString()  # messages one after the other are read as one
    assert (
        shuffled != data
        and record.decode(shuffled) == make_group(4)
        and record.encode(record.decode(shuffled)) == data
    )


def test_tfds_lays_the_record_out_in_the_same_way(make_group):
    """Records are built without TFDS' serialiser, which is slower: the two must agree, both
    ways.
    """
    from tensorflow_datasets.core import example_serializer

    group = make_group(4)
    spec = record.features()
    data = record.encode(group)
    parsed = spec.deserialize_example_np(data)
    assert set(parsed) == {name for name, _, _ in encoding.FIELDS} | {record.CHECKSUM}
    assert encoding.from_record(parsed) == group
    values = encoding.to_record(group) | {record.CHECKSUM: parsed[record.CHECKSUM]}
    serializer = example_serializer.ExampleSerializer(spec.get_serialized_info())
    assert record.decode(serializer.serialize_example(spec.encode_example(values))) == group


def test_any_changed_value_fails_the_checksum(make_group):
    from tensorflow_datasets.proto import tf_example_pb2

    data = record.encode(make_group(4))
    for name, kind, _ in encoding.FIELDS:
        example = tf_example_pb2.Example.FromString(data)
        feature = example.features.feature[name]
        if kind == "int64":
            feature.int64_list.value[0] += 1
        else:
            feature.bytes_list.value[0] += b"\1"
        with pytest.raises(record.CorruptRecord, match="checksum"):
            record.decode(example.SerializeToString())
        del example.features.feature[name]
        with pytest.raises(record.CorruptRecord, match="checksum"):
            record.decode(example.SerializeToString())


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"not a record at all"])
def test_what_is_no_record_is_named_so(data):
    with pytest.raises(record.CorruptRecord, match="record"):
        record.decode(data)


def test_a_record_of_a_newer_minor_version_is_read_without_its_other_fields(
    make_group, monkeypatch
):
    group = make_group(4)
    with monkeypatch.context() as newer:
        add_field(newer)
        data = record.encode(group)
    assert data != record.encode(group) and record.decode(data) == make_group(4)


def test_a_record_of_schema_1_0_still_reads(make_group, monkeypatch):
    group = make_group(4)
    added = {"token_versions": None, "is_expert": None, "min_p": 0.0}
    added |= {"logprob_dtype": "", "engine": "", "seed": -1, "attempt": 0, "environment": ""}
    added |= {"environment_version": "", "environment_seed": -1, "turn_counts": None}
    added |= dict.fromkeys(("turn_tokens", "turn_texts", "turn_rewards"))
    with monkeypatch.context() as older:
        fields = tuple(field for field in encoding.FIELDS if field[0] not in added)
        older.setattr(encoding, "FIELDS", fields)
        data = record.encode(group)
    read = record.decode(data)
    assert read == dataclasses.replace(group, **added)
    read.validate()
    assert record.decode(record.encode(read)) == read


@given(
    texts=st.lists(st.text(), min_size=1, max_size=4),
    seed=st.integers(-1, 2**62),
    temperature=st.floats(0, 10),
)
def test_any_text_and_any_number_survives(texts, seed, temperature):
    group = rollouts.Group(
        group_id="x",
        prompt=texts[0],
        texts=texts,
        rewards=np.arange(len(texts)),
        seed=seed,
        temperature=temperature,
    )
    assert rollouts.from_record(rollouts.to_record(group)) == group


def test_extra_must_be_json(make_group):
    with pytest.raises(DataError, match="extra.*JSON"):
        rollouts.to_record(make_group(1, extra={"a": object()}))
