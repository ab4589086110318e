import dataclasses
import subprocess
import sys

import jax.numpy as jnp
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


def test_text_only_group_has_the_defaults_of_unknown_origin():
    group = rollouts.Group(group_id="a", prompt="2+2=", texts=["4", "5"], rewards=[1, 0])
    assert group.lengths.tolist() == [0, 0] and group.policy_version.tolist() == [-1, -1] and group.position == -1
    assert group.behavior_logprobs is None and group.finish_reasons == ["imported"] * 2 and group.rewards.dtype == np.float32
    assert rollouts.from_record(rollouts.to_record(group)) == group


@given(texts=st.lists(st.text(), min_size=1, max_size=4), seed=st.integers(-1, 2**62), temperature=st.floats(0, 10))
def test_any_text_and_any_number_survives(texts, seed, temperature):
    group = rollouts.Group(group_id="x", prompt=texts[0], texts=texts, rewards=np.arange(len(texts)), seed=seed, temperature=temperature)
    assert rollouts.from_record(rollouts.to_record(group)) == group


def test_lone_surrogates_survive():
    group = rollouts.Group(group_id="x", prompt="\ud800", texts=["\udfff"], rewards=[0])
    assert rollouts.from_record(rollouts.to_record(group)) == group


def test_jax_arrays_of_any_float_dtype_are_taken(make_group):
    group = make_group(1)
    taken = dataclasses.replace(
        group, behavior_logprobs=jnp.asarray(group.behavior_logprobs, jnp.bfloat16), tokens=jnp.asarray(group.tokens)
    )
    assert taken.behavior_logprobs.dtype == np.float32 and taken.tokens.dtype == np.int32


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"rewards": [1.0, 0.0]}, ("rewards", "2 values", "one per completion: 4")),
        ({"rewards": [1.0, float("nan"), 0.0, 0.0]}, ("rewards", "nan", "finite")),
        ({"rewards": ["a", "b", "c", "d"]}, ("rewards", "'a'", "numbers")),
        ({"texts": [], "rewards": []}, ("texts", "at least one")),
        ({"texts": [1, 2, 3, 4]}, ("texts", "1", "string")),
        ({"lengths": [1, 1, 1, 99]}, ("lengths", "99", "add up")),
        ({"lengths": [-1, 1, 1, 99]}, ("lengths", "-1")),
        ({"tokens": [[1], [2]]}, ("tokens", "shape (2, 1)", "one-dimensional")),
        ({"prompt_tokens": [1.5]}, ("prompt_tokens", "1.5", "whole")),
        ({"prompt_tokens": [2**31]}, ("prompt_tokens", "out of range")),
        ({"prompt_tokens": [-3]}, ("prompt_tokens", "-3")),
        ({"mask": [1]}, ("mask", "one per token")),
        ({"behavior_logprobs": [0.0]}, ("behavior_logprobs", "1 values")),
        ({"finish_reasons": ["stop", "stop", "stop", "eos"]}, ("finish_reasons", "'eos'", "stop, length, imported")),
        ({"components": {"format": [1.0]}}, ("components['format']", "1 values")),
        ({"temperature": -1.0}, ("temperature", "-1.0", "at least 0")),
        ({"top_p": 0.0}, ("top_p", "0.0")),
        ({"top_k": -5}, ("top_k", "-5")),
        ({"seed": 2**63}, ("seed", "out of range")),
        ({"attempt": "3"}, ("attempt", "'3'")),
        ({"attempt": [1, 2]}, ("attempt", "one number")),
        ({"temperature": float("nan")}, ("temperature", "nan")),
        ({"policy_version": [-2, 0, 0, 0]}, ("policy_version", "-2")),
        ({"prompt": None}, ("prompt", "None", "string")),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_the_fix(make_group, change, names):
    with pytest.raises(DataError) as error:
        make_group(5, **change)
    assert "'g5'" in str(error.value)
    for name in names:
        assert name in str(error.value)


def test_logprobs_are_checked_where_the_policy_generated(make_group):
    group = make_group(2)
    logprobs = group.behavior_logprobs.copy()
    logprobs[group.mask == 0] = np.nan
    assert dataclasses.replace(group, behavior_logprobs=logprobs).behavior_logprobs is not None
    for bad in (np.nan, 0.5, -np.inf):
        logprobs[np.flatnonzero(group.mask)[0]] = bad
        with pytest.raises(DataError, match=r"behavior_logprobs is wrong \((nan|0.5|-inf)\)"):
            dataclasses.replace(group, behavior_logprobs=logprobs)


def test_extra_must_be_json(make_group):
    with pytest.raises(DataError, match="extra.*JSON"):
        rollouts.to_record(make_group(1, extra={"a": object()}))


def test_numpy_scalars_become_pythons_own(make_group):
    group = dataclasses.replace(make_group(1), position=np.int32(1), seed=jnp.uint32(7), temperature=np.float32(0.5))
    assert (type(group.position), type(group.seed), type(group.temperature)) == (int, int, float)


def test_offsets_and_signal(make_group):
    group = make_group(1, rewards=[0, 0, 0, 1])
    assert group.has_signal and not make_group(1, rewards=[1, 1, 1, 1]).has_signal
    assert group.offsets.tolist() == [0, *np.cumsum(group.lengths)]


def test_equality_sees_every_field(make_group):
    group = make_group(1)
    assert group == make_group(1)
    for change in ({"seed": 3}, {"rewards": [9, 9, 9, 9]}, {"policy_logprobs": None}, {"extra": {}}, {"texts": ["a"] * 4}):
        assert group != dataclasses.replace(group, **change)


def test_a_record_of_an_older_minor_version_gets_defaults(make_group):
    record = rollouts.to_record(make_group(1))
    for name in ("seed", "attempt", "sources", "top_k", "policy_version", "component_names", "components"):
        del record[name]
    group = rollouts.from_record(record)
    assert (group.seed, group.attempt, group.sources, group.components) == (-1, 0, [""] * 4, {})
    assert group.policy_version.tolist() == [-1] * 4


def test_importing_rollouts_imports_nothing_heavy():
    heavy = ("tensorflow_datasets", "grain", "tensorflow", "array_record", "rich", "jax")
    code = f"import sys, grre_jax.rollouts, grre_jax.rollouts.commands; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"
