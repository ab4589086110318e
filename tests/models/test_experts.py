"""Mixtures of experts: products by expert, routes, replay, and what a model of them stores."""

import dataclasses
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings, strategies as st

from grre_jax import models, sampling
from grre_jax.errors import UsageError
from grre_jax.models import experts
from grre_jax.models.checkpoints import streaming
from grre_jax.models.experts import UNKNOWN
from grre_jax.parallel import mesh as meshes

from .conftest import SHAPE

MIXTURE = {"num_experts": 5, "experts_per_token": 2, "family": "mixtral"}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=3, max_size=3), st.integers(0, 9))
def test_every_row_meets_its_expert(sizes, more):
    rows = 64
    sizes = np.minimum(np.array(sizes), (rows - more) // 3).astype(np.int32)
    random = np.random.default_rng(int(sizes.sum()))
    x, g = (random.normal(size=(rows, n)).astype(np.float32) for n in (6, 4))
    w = random.normal(size=(3, 6, 4)).astype(np.float32)
    expected, grads = np.zeros((rows, 4)), (np.zeros((rows, 6)), np.zeros((3, 6, 4)))
    for e, end in enumerate(np.cumsum(sizes)):
        own = slice(end - sizes[e], end)
        expected[own] = x[own] @ w[e]
        grads[0][own] = g[own] @ w[e].T
        grads[1][e] = x[own].T @ g[own]
    for platform in ("cpu", "tpu"):
        y, back = products(x, w, sizes, g, platform)
        for found, wanted in zip((y, *back), (expected, *grads), strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-4)


@nnx.jit
def call(model, segments, routes):
    return model.forward(jnp.arange(12).reshape(2, 6), None, segments, routes=routes)


def forward(model, routes=None, segments=None):
    return call(model, np.ones((2, 6), int) if segments is None else segments, routes)


@partial(jax.jit, static_argnums=4)
def products(x, w, sizes, g, platform):
    """By the way of a platform, of which this one's compiler knows the operations."""
    with mock.patch.object(meshes, "platform", lambda: platform):
        y, back = jax.vjp(lambda x, w: experts.grouped_product(x, w, sizes), x, w)
        return y, back(g)


def test_experts_that_are_alike_are_one_swiglu(small):
    dense = small()
    mixture = small(**MIXTURE)
    for name in ("gate_proj", "up_proj", "down_proj"):
        alike = jnp.stack(5 * [getattr(dense.layers, name)[...]], axis=1)
        getattr(mixture.layers, f"expert_{name}")[...] = alike
    np.testing.assert_allclose(forward(mixture)[0], forward(dense)[0], atol=1e-5)


def test_given_experts_replace_the_routers(small):
    model = small(**MIXTURE)
    hidden, router = forward(model)
    routes = router.chosen.astype(jnp.uint16)
    assert routes.shape == (2, 6, 2, 2) and (router.replayed == 0).all()
    again, replayed = forward(model, routes)
    np.testing.assert_allclose(again, hidden, atol=1e-6)
    assert (replayed.replayed == 12).all() and (replayed.differing == 0).all()
    # One token of the second row takes another expert in place of its second, another is unknown.
    other = next(e for e in range(5) if e not in routes[1, 2, 0])
    changed = routes.at[1, 2, 0, 1].set(other).at[0, 4].set(UNKNOWN)
    moved, router = forward(model, changed)
    np.testing.assert_allclose(router.replayed, 11)
    assert (router.differing[0], router.chosen[1, 2, 0, 1]) == (0.5, other)
    same = np.ones((2, 6), bool)
    same[1, 2:] = False  # what comes after it sees it
    np.testing.assert_allclose(moved[same], hidden[same], atol=1e-5)
    assert np.abs(moved - hidden)[1, 2].max() > 1e-3


# Every expert alike, or one token of two for the first of all.
@pytest.mark.parametrize(
    "load, probability, imbalance", [([5.0] * 4, [2.5] * 4, 2), ([10, 10, 0, 0], [10, 0, 0, 0], 4)]
)
def test_imbalance(load, probability, imbalance):
    load, probability = (np.array([row] * 3, np.float32) for row in (load, probability))
    assert experts.Router(None, load, probability, None, None).imbalance == imbalance


def test_padding_is_not_counted(small):
    _, router = forward(small(**MIXTURE), segments=np.array([[1, 1, 2, 0, 0, 0], [0] * 6]))
    np.testing.assert_allclose(router.load.sum(1), 3 * 2)
    np.testing.assert_allclose(router.probability.sum(1), 3, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"group_size": 3, "max_concurrent": 2},  # rows are refilled
        pytest.param({}, marks=pytest.mark.slow),
    ],
)
def test_the_sampler_records_the_experts_that_the_learner_replays(small, options):
    model = small(**MIXTURE, eos_ids=(7,))
    prompts = [[3, 4, 5], [6], [9, 1, 2, 3]]
    params = sampling.SamplingParams(max_new_tokens=9)
    key = jax.random.key(0)
    samples = jax.device_get(
        sampling.sample(model, prompts, params, key=key, routes=True, **options)
    )
    tokens = np.zeros((*samples.lengths.shape, 16), np.int32)
    routes = np.full((*tokens.shape, 2, 2), UNKNOWN, np.uint16)
    scores = np.zeros(tokens.shape)
    for b, k in np.ndindex(samples.lengths.shape):
        start, length = len(prompts[b]), samples.lengths[b, k]
        own = slice(start, start + length)
        tokens[b, k, : own.stop] = [*prompts[b], *samples.tokens[b, k, :length]]
        routes[b, k, :start] = samples.prompt_routes[b, :start]
        routes[b, k, own] = samples.routes[b, k, :length]
        scores[b, k, own] = samples.behavior_logprobs[b, k, :length]
        # No expert saw the last token.
        known = (routes[b, k] != UNKNOWN).all((1, 2))
        assert known[: own.stop - 1].all() and not known[own.stop - 1 :].any()
    found, router = score(model, tokens.reshape(-1, 16), routes.reshape(-1, 16, 2, 2))
    drawn = scores.reshape(-1, 16) != 0
    np.testing.assert_allclose(found[drawn], scores.reshape(-1, 16)[drawn], atol=1e-5)
    assert (router.differing == 0).all() and (router.replayed > 0).all()


@nnx.jit
def score(model, tokens, routes):
    return models.token_logprobs(model, tokens, routes=routes, with_router=True)


def test_a_dense_model_has_no_routes(small):
    with pytest.raises(ValueError, match="routes"):
        sampling.sample(
            small(), [[1]], sampling.SamplingParams(), key=jax.random.key(0), routes=True
        )


def test_low_rank_terms_of_experts_are_merged(small, tmp_path):
    lora = models.LoraConfig(rank=3, targets=("q_proj", "up_proj", "down_proj"))
    model = small(**MIXTURE, lora=lora)
    assert model.layers.expert_down_lora_b.shape == (2, 5, 3, 16)
    merged = models.merged(model)
    expected, _ = forward(model)
    np.testing.assert_allclose(forward(merged)[0], expected, atol=1e-3, rtol=1e-3)
    assert np.abs(forward(small(**MIXTURE))[0] - expected).max() > 0.1
    again = models.load(models.save(merged, tmp_path / "model"))
    assert models.fingerprint(again) == models.fingerprint(merged)
    with pytest.raises(UsageError):
        models.save_adapter(model, tmp_path / "adapter", base="base")


def test_names_of_a_checkpoint():
    config = dataclasses.replace(SHAPE, num_experts=2, qk_norm=True, family="qwen3_moe")
    arrays = models.parameters(models.init(config))
    shapes = {name: x.shape for name, x in arrays.items()}
    found = streaming.stored_shapes(streaming.stored_pieces(config, shapes))
    layer = "model.layers.1.mlp"
    assert {n: s for n, s in found.items() if n.startswith(layer)} == {
        f"{layer}.gate.weight": (2, 16),
        **{
            f"{layer}.experts.{e}.{name}_proj.weight": (16, 24) if name == "down" else (24, 16)
            for e in range(2)
            for name in ("gate", "up", "down")
        },
    }
    assert config.num_parameters == sum(array.size for array in arrays.values())
    # A token takes one of two experts: what it costs beside a SwiGLU is the router of two layers.
    dense = dataclasses.replace(config, num_experts=0)
    assert config.flops_per_token(0) - dense.flops_per_token(0) == 2 * 2 * 16 * 2
