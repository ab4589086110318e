import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts import encoding

from ..groups import add_field, group_of_tfds


def test_tfds_lays_the_record_out_in_the_same_way(make_group):
    """Records are built without TFDS' serialiser, which is slower: the two must agree, both
    ways.
    """
    from tensorflow_datasets.core import example_serializer

    group = make_group(4)
    spec = encoding.features()
    parsed = spec.deserialize_example_np(encoding.encode(group))
    assert set(parsed) == {name for name, _ in encoding.FIELDS} | {encoding.CHECKSUM}
    assert group_of_tfds(parsed) == group
    serializer = example_serializer.ExampleSerializer(spec.get_serialized_info())
    assert encoding.decode(serializer.serialize_example(spec.encode_example(parsed))) == group


def test_any_changed_value_fails_the_checksum(make_group):
    from tensorflow_datasets.proto import tf_example_pb2

    data = encoding.encode(make_group(4))
    for name, kind in encoding.FIELDS:
        changed, without = (tf_example_pb2.Example.FromString(data) for _ in range(2))
        if kind == "int64":
            changed.features.feature[name].int64_list.value[0] += 1
        else:
            changed.features.feature[name].bytes_list.value[0] += b"\1"
        del without.features.feature[name]
        for example in (changed, without):
            with pytest.raises(DataError):
                encoding.decode(example.SerializeToString())


def test_a_record_of_a_newer_minor_version_is_read_without_its_other_fields(
    make_group, monkeypatch
):
    group = make_group(4)
    with monkeypatch.context() as newer:
        add_field(newer)
        data = encoding.encode(group)
    assert data != encoding.encode(group) and encoding.decode(data) == group


def test_a_record_of_schema_1_0_still_reads(make_group, monkeypatch):
    group = make_group(4)
    added = {"min_p": 0.0, "seed": -1, "attempt": 0, "environment_seed": -1}
    added |= dict.fromkeys(("logprob_dtype", "engine", "environment", "environment_version"), "")
    added |= dict.fromkeys(("token_versions", "is_expert", "turn_counts"))
    added |= dict.fromkeys(("turn_tokens", "turn_texts", "turn_rewards"))
    with monkeypatch.context() as older:
        fields = tuple(field for field in encoding.FIELDS if field[0] not in added)
        contents = {name: encoding._contents(group)[name] for name, _ in fields}
        older.setattr(encoding, "FIELDS", fields)
        older.setattr(encoding, "_contents", lambda group: contents)
        data = encoding.encode(group)
    read = encoding.decode(data)
    assert read == dataclasses.replace(group, **added)
    read.validate()
    assert encoding.decode(encoding.encode(read)) == read


@settings(max_examples=30)
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
    assert encoding.decode(encoding.encode(group)) == group
