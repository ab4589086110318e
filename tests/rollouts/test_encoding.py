import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from grre_jax.errors import DataError
from grre_jax.rollouts import encoding

from ..groups import add_field, group_of_tfds, text_group


def test_tfds_lays_the_record_out_in_the_same_way(make_group):
    """Records are built without TFDS' serialiser, which is slower: the two must agree, both
    ways.
    """
    from tensorflow_datasets.core import example_serializer

    group = make_group(4)
    spec = encoding.features()
    parsed = spec.deserialize_example_np(encoding.encode(group))
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


# Those that records have since later versions than 1.0.
LATER = """min_p seed attempt logprob_dtype engine token_versions is_expert environment
    environment_version environment_seed turn_counts turn_tokens turn_texts turn_rewards""".split()


def test_a_record_of_schema_1_0_still_reads(make_group, monkeypatch):
    group = make_group(4)
    with monkeypatch.context() as older:
        fields = tuple(field for field in encoding.FIELDS if field[0] not in LATER)
        contents = {name: encoding._contents(group)[name] for name, _ in fields}
        older.setattr(encoding, "FIELDS", fields)
        older.setattr(encoding, "_contents", lambda group: contents)
        data = encoding.encode(group)
    read = encoding.decode(data)
    assert (read.min_p, read.seed, read.engine) == (0.0, -1, "")
    later = {name: getattr(group, name) for name in LATER}
    assert dataclasses.replace(read, **later) == group


@settings(max_examples=30)
@given(texts=st.lists(st.text(), min_size=1, max_size=4), temperature=st.floats(0, 10))
def test_any_text_and_any_number_survives(texts, temperature):
    rewards = range(len(texts))
    group = text_group(1, texts, rewards, prompt=texts[0], temperature=temperature)
    assert encoding.decode(encoding.encode(group)) == group
