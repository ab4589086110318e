"""Low-rank terms: nothing at first, the same apart as merged, on any projections."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import models, sampling
from grre_jax.models import lora
from grre_jax.models.checkpoints import layout
from grre_jax.models.lora import TARGETS, LoraConfig

SHAPE = models.ModelConfig(
    vocab_size=29,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    qkv_bias=True,
)
TOKENS = np.array([[3, 10, 5, 15, 8, 16, 2], [0, 12, 9, 15, 0, 28, 7]])


def adapted(config, scale=0.2, **options):
    """A model whose A and B are all random."""
    model = models.init(SHAPE, lora=config, **options)
    random = np.random.default_rng(1)
    for name in lora.parameter_names(config):
        value = getattr(model.layers, name)
        value[...] = jnp.asarray(random.normal(scale=scale, size=value.shape), value.dtype)
    return model


def logits(model):
    return np.asarray(nnx.jit(lambda model: model.logits(model(TOKENS)))(model), np.float32)


def test_the_base_is_what_it_is_without_and_b_starts_at_zero():
    base, model = models.init(SHAPE, 7), models.init(SHAPE, 7, lora=LoraConfig(3))
    expected, found = models.parameters(base), models.parameters(model)
    assert sorted(found.keys() - expected.keys()) == sorted(
        f"layers.{p}_lora_{h}" for p in ("q", "k", "v", "o", "gate", "up", "down") for h in "ab"
    )
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    np.testing.assert_array_equal(logits(model), logits(base))
    a = np.asarray(found["layers.down_lora_a"])  # uniform within 1 / sqrt(in)
    assert (
        a.shape == (2, 24, 3)
        and 0.8 * 24**-0.5 < np.abs(a).max() <= 24**-0.5
        and abs(a.mean()) < 0.05
    )


@pytest.mark.parametrize(
    "targets, unroll",
    [
        (TARGETS, True),
        (TARGETS, False),
        (("v_proj", "q_proj", "o_proj"), False),
        (("up_proj", "down_proj"), True),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
)
def test_merged_equals_separate_and_every_projection_gets_its_own_term(targets, unroll):
    config = LoraConfig(3, 5.0, targets)
    model = adapted(config, unroll=unroll)
    before, separate = models.parameters(model), logits(model)
    merged = models.merged(model)
    assert merged.lora is None and model.lora == config
    np.testing.assert_allclose(logits(merged), separate, rtol=0, atol=1e-5)
    assert np.abs(separate - logits(models.init(SHAPE))).max() > 1e-2
    after, moved = models.parameters(merged), set()
    for parameter in ("qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        for i in range(SHAPE.num_layers):
            old, new = (
                layout.split(SHAPE, parameter, p[f"layers.{parameter}"][i]) for p in (before, after)
            )
            for piece, weight in old.items():
                change = np.zeros(weight.shape)
                if piece in targets:
                    a, b = (
                        np.asarray(
                            before[f"layers.{piece.removesuffix('_proj')}_lora_{half}"][i],
                            np.float64,
                        )
                        for half in "ab"
                    )
                    change = 5.0 / 3 * (a @ b).T
                    moved.add(piece)
                np.testing.assert_allclose(new[piece], weight + change, rtol=0, atol=1e-6)
    assert moved == set(targets)
    assert models.merged(merged) is merged


@pytest.mark.slow
def test_sampling_takes_the_terms_along():
    model = adapted(LoraConfig(2, 4.0))
    drawn = [
        sampling.sample(
            m,
            TOKENS[:, :4],
            sampling.SamplingParams(max_new_tokens=4),
            prompt_lengths=[4, 2],
            group_size=2,
            key=jax.random.key(3),
            eos_ids=[],
        )
        for m in (model, models.merged(model))
    ]
    np.testing.assert_array_equal(drawn[0].tokens, drawn[1].tokens)
    np.testing.assert_allclose(drawn[0].policy_logprobs, drawn[1].policy_logprobs, atol=1e-5)


def test_a_bfloat16_base_has_float32_terms_and_keeps_its_dtype():
    model = adapted(LoraConfig(2, 4.0, ("q_proj", "up_proj")), dtype=jnp.bfloat16)
    dtypes = {name: value.dtype for name, value in models.parameters(model).items()}
    assert {dtypes[name] for name in dtypes if lora.is_lora(name)} == {jnp.dtype("float32")}
    merged = models.merged(model)
    assert {value.dtype for value in models.parameters(merged).values()} == {jnp.dtype("bfloat16")}
    np.testing.assert_allclose(logits(merged), logits(model), atol=0.1)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"rank": 0}, "lora_rank must be at least 1, got 0"),
        ({"rank": 2, "alpha": -1.0}, "lora_alpha must be above 0, got -1"),
        ({"rank": 2, "targets": ("q_prj",)}, r"no projection 'q_prj'; did you mean q_proj\?"),
        ({"rank": 2, "targets": ()}, "must name at least one"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LoraConfig(**fields)
