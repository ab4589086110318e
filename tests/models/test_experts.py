"""Mixtures of experts: products by expert, routes, replay, and what a model of them stores."""

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
from grre_jax.models.experts import UNKNOWN
from grre_jax.parallel import mesh as meshes

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
    hidden = np.asarray(hidden)
    routes = np.asarray(router.chosen, np.uint16)
    assert routes.shape == (2, 6, 2, 2) and (router.replayed == 0).all()
    again, replayed = jax.device_get(forward(model, routes))
    np.testing.assert_allclose(again, hidden, atol=1e-6)
    assert (replayed.replayed == 12).all() and (replayed.differing == 0).all()
    # One token of the second row takes another expert in place of its second, another is unknown.
    other = next(e for e in range(5) if e not in routes[1, 2, 0])
    changed = routes.copy()
    changed[1, 2, 0, 1] = other
    changed[0, 4] = UNKNOWN
    moved, router = jax.device_get(forward(model, changed))
    np.testing.assert_allclose(router.replayed, 11)
    assert (router.differing[0], router.chosen[1, 2, 0, 1]) == (0.5, other)
    same = np.ones((2, 6), bool)
    same[1, 2:] = False  # what comes after it sees it
    np.testing.assert_allclose(moved[same], hidden[same], atol=1e-5)
    assert np.abs(moved - hidden)[1, 2].max() > 1e-3


def test_padding_is_not_counted(small):
    _, router = forward(small(**MIXTURE), segments=np.array([[1, 1, 2, 0, 0, 0], [0] * 6]))
    np.testing.assert_allclose(router.load.sum(1), 3 * 2)
    np.testing.assert_allclose(router.probability.sum(1), 3, rtol=1e-6)
    # Every token of one for the first of four experts.
    load, probability = (np.array([[n, n, 0, 0]], np.float32) for n in (10, 5))
    assert experts.Router(None, load, probability, None, None).imbalance == 4


def test_the_sampler_records_the_experts_that_the_learner_replays(small):
    """Where rows are refilled too."""
    model = small(**MIXTURE, eos_ids=(7,))
    prompts = [[3, 4, 5], [6], [9, 1, 2, 3]]
    options = {"key": jax.random.key(0), "group_size": 3, "max_concurrent": 2}
    params = sampling.SamplingParams(max_new_tokens=9)
    samples = jax.device_get(sampling.sample(model, prompts, params, routes=True, **options))
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


def test_the_sampler_routes_by_the_parameters_in_their_precision(small):
    """As the learner does: experts of nearly equal logits are not told apart in bfloat16."""
    model = small(**MIXTURE, compute_dtype=jnp.bfloat16)
    router = model.layers.router_proj[...]
    # Every second expert is the one before it, a little larger where the logits are above 0.
    near = router[..., ::2] * (1 + 2**-10)
    model.layers.router_proj[...] = router.at[..., 1::2].set(near[..., :2]).at[..., 4].set(0)
    prompts = np.random.default_rng(0).integers(0, 29, (8, 12))
    params = sampling.SamplingParams(max_new_tokens=1)
    options = {"key": jax.random.key(0), "routes": True}
    samples = jax.device_get(sampling.sample(model, prompts, params, **options))
    _, router = jax.device_get(routed(model, prompts))
    # A third of them differed; the rounding of activations may move a few.
    assert (samples.prompt_routes[:, :12] != router.chosen).mean() < 0.02


@nnx.jit
def routed(model, tokens):
    return model.forward(tokens)


@nnx.jit
def score(model, tokens, routes):
    return models.token_logprobs(model, tokens, routes=routes, with_router=True)


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
    arrays = models.parameters(again).values()
    assert again.config.num_parameters == sum(array.size for array in arrays)
    with pytest.raises(UsageError):
        models.save_adapter(model, tmp_path / "adapter", base="base")
