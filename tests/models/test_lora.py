"""Low-rank terms: nothing at first, the same apart as merged, on any projections."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import models
from grre_jax.models import lora
from grre_jax.models.checkpoints import layout
from grre_jax.models.lora import TARGETS, LoraConfig

from .conftest import SHAPE

TOKENS = np.array([[3, 10, 5, 15, 8, 16, 2], [0, 12, 9, 15, 0, 28, 7]])


@nnx.jit
def call(model):
    return model.logits(model(TOKENS))


def logits(model):
    return np.asarray(call(model), np.float32)


def test_the_base_is_what_it_is_without_and_b_starts_at_zero():
    base, model = models.init(SHAPE, 7), models.init(SHAPE, 7, lora=LoraConfig(3))
    expected, found = models.parameters(base), models.parameters(model)
    names = lora.parameter_names(SHAPE, LoraConfig(3))
    assert found.keys() - expected.keys() == {f"layers.{name}" for name in names}
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    assert not any(found[f"layers.{name}"].any() for name in names if name.endswith("_b"))
    a, bound = np.asarray(found["layers.down_lora_a"]), 24**-0.5  # uniform within 1 / sqrt(in)
    assert a.shape == (2, 24, 3) and abs(a.mean()) < 0.05
    assert 0.8 * bound < np.abs(a).max() <= bound


@pytest.mark.parametrize(
    "targets, unroll",
    [
        (TARGETS, True),
        (("v_proj", "q_proj", "o_proj"), False),  # a part of the joined projections
    ],
)
def test_merged_equals_separate_and_every_projection_gets_its_own_term(small, targets, unroll):
    config = LoraConfig(3, 5.0, targets)
    model = small(lora=config, unroll=unroll)
    merged = models.merged(model)
    assert merged.lora is None and model.lora == config
    assert models.merged(merged) is merged
    np.testing.assert_allclose(logits(merged), logits(model), rtol=0, atol=1e-4)
    before, after = (
        {name: np.asarray(p) for name, p in models.parameters(each).items()}
        for each in (model, merged)
    )
    for parameter in ("qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        for i in range(SHAPE.num_layers):
            old, new = (
                layout.split(SHAPE, parameter, p[f"layers.{parameter}"][i]) for p in (before, after)
            )
            for number, piece in enumerate(layout.pieces(SHAPE, parameter)):
                weight = old[number]
                if piece in targets:
                    name = f"layers.{piece.removesuffix('_proj')}_lora"
                    a, b = (before[f"{name}_{half}"][i].astype(float) for half in "ab")
                    weight = weight + 5.0 / 3 * (a @ b).T
                np.testing.assert_allclose(new[number], weight, rtol=0, atol=1e-6)


def test_a_bfloat16_base_has_float32_terms_and_keeps_its_dtype(small):
    model = small(lora=LoraConfig(2, 4.0, ("q_proj", "up_proj")), dtype=jnp.bfloat16)
    dtypes = {name: value.dtype for name, value in models.parameters(model).items()}
    assert {dtypes[name] for name in dtypes if lora.is_lora(name)} == {jnp.dtype("float32")}
    merged = models.merged(model)
    assert {value.dtype for value in models.parameters(merged).values()} == {jnp.dtype("bfloat16")}
    np.testing.assert_allclose(logits(merged), logits(model), atol=0.1)
