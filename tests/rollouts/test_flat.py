import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts import schema


def test_group_survives_the_flat_record(make_group):
    group = make_group(7)
    record = rollouts.to_record(group)
    assert set(record) == {name for name, _, _ in schema.FIELDS}
    assert all(value.ndim == 1 for value in record.values() if isinstance(value, np.ndarray))
    assert rollouts.from_record(record) == group


@given(texts=st.lists(st.text(), min_size=1, max_size=4), seed=st.integers(-1, 2**62), temperature=st.floats(0, 10))
def test_any_text_and_any_number_survives(texts, seed, temperature):
    group = rollouts.Group(group_id="x", prompt=texts[0], texts=texts, rewards=np.arange(len(texts)), seed=seed, temperature=temperature)
    assert rollouts.from_record(rollouts.to_record(group)) == group


def test_lone_surrogates_survive():
    group = rollouts.Group(group_id="x", prompt="\ud800", texts=["\udfff"], rewards=[0])
    assert rollouts.from_record(rollouts.to_record(group)) == group


def test_extra_must_be_json(make_group):
    with pytest.raises(DataError, match="extra.*JSON"):
        rollouts.to_record(make_group(1, extra={"a": object()}))


def test_a_record_of_an_older_minor_version_gets_defaults(make_group):
    record = rollouts.to_record(make_group(1))
    for name in ("seed", "attempt", "sources", "top_k", "policy_version", "component_names", "components"):
        del record[name]
    group = rollouts.from_record(record)
    assert (group.seed, group.attempt, group.sources, group.components) == (-1, 0, [""] * 4, {})
    assert group.policy_version.tolist() == [-1] * 4
