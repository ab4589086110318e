"""Low-rank terms: nothing at first, the same apart as merged, on any projections."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import models
from grre_jax.models import lora, transformer
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
    assert a.shape == (2, 24, 3) and 0.8 * bound < np.abs(a).max() <= bound


@pytest.mark.parametrize("targets", [TARGETS, ("q_proj", "v_proj", "o_proj")])
def test_merged_equals_separate(small, targets, monkeypatch):
    """The second are a part of the joined projections."""
    config = LoraConfig(3, 5.0, targets)
    monkeypatch.setattr(transformer, "UNROLL_LAYERS_ON_CPU", 8 * (len(targets) > 3))
    model = small(lora=config)
    merged = models.merged(model)
    assert merged.lora is None and model.lora == config
    assert models.merged(merged) is merged
    np.testing.assert_allclose(logits(merged), logits(model), rtol=0, atol=1e-4)
    layers = model.layers
    a, b = (np.asarray(x[...][1], float) for x in (layers.o_lora_a, layers.o_lora_b))
    found = merged.layers.o_proj[...][1] - layers.o_proj[...][1]
    np.testing.assert_allclose(found, 5.0 / 3 * a @ b, rtol=0, atol=1e-5)


def test_a_bfloat16_base_has_float32_terms_and_keeps_its_dtype(small):
    model = small(lora=LoraConfig(2), dtype=jnp.bfloat16)
    assert model.layers.q_lora_a.dtype == jnp.float32
    merged = models.parameters(models.merged(model))
    assert {value.dtype for value in merged.values()} == {jnp.dtype("bfloat16")}
