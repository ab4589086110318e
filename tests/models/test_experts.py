"""Mixtures of experts: products by expert, routes, replay, and what a model of them stores."""

from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import models, sampling
from grre_jax.errors import UsageError
from grre_jax.models import experts
from grre_jax.models.experts import UNKNOWN
from grre_jax.parallel import mesh as meshes

MIXTURE = {"num_experts": 5, "experts_per_token": 2, "family": "mixtral"}


@pytest.mark.parametrize("sizes", [(0, 0, 0), (21, 0, 17), (3, 40, 21), (0, 1, 63)])
def test_every_row_meets_its_expert(sizes):
    rows, sizes = 64, np.array(sizes, np.int32)
    random = np.random.default_rng(0)
    x, g = (random.normal(size=(rows, n)).astype(np.float32) for n in (6, 4))
    w = random.normal(size=(3, 6, 4)).astype(np.float32)
    ends = np.cumsum(sizes)[:, None]
    own = (ends - sizes[:, None] <= np.arange(rows)) & (np.arange(rows) < ends)  # [experts, rows]
    expected = (
        np.einsum("er,ri,eio->ro", own, x, w),
        np.einsum("er,ro,eio->ri", own, g, w),
        np.einsum("er,ri,ro->eio", own, x, g),
    )
    for platform in ("cpu", "tpu"):
        y, back = products(x, w, sizes, g, platform)
        for found, wanted in zip((y, *back), expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-4)


@partial(jax.jit, static_argnums=4)
def products(x, w, sizes, g, platform):
    """By the way of a platform, of which this one's compiler knows the operations."""
    with mock.patch.object(meshes, "platform", lambda: platform):
        y, back = jax.vjp(lambda x, w: experts.grouped_product(x, w, sizes), x, w)
        return y, back(g)


TOKENS = np.arange(12).reshape(2, 6)
ONE = np.ones((2, 6), int)  # segment in every row


@nnx.jit
def computed(model, routes, segments, tokens):
    return model.forward(tokens, None, segments, routes=routes)


def forward(model, routes=None, segments=ONE, tokens=TOKENS):
    return computed(model, routes, segments, tokens)


@nnx.jit
def score(model, tokens, routes):
    return models.token_logprobs(model, tokens, routes=routes, everything=True)[::2]


def test_experts_that_are_alike_are_one_swiglu(small):
    dense = small()
    mixture = small(**MIXTURE)
    for name in ("gate_proj", "up_proj", "down_proj"):
        alike = jnp.stack(5 * [getattr(dense.layers, name)[...]], axis=1)
        getattr(mixture.layers, f"expert_{name}")[...] = alike
    np.testing.assert_allclose(forward(mixture)[0], forward(dense)[0], atol=1e-5)


def test_given_experts_replace_the_routers(small):
    model = small(**MIXTURE)
    hidden, router = jax.device_get(forward(model))
    params = sampling.SamplingParams(max_new_tokens=1)
    samples = sampling.sample(model, TOKENS, params, key=jax.random.key(0), routes=True)
    routes = np.array(samples.prompt_routes[:, :6])
    assert routes.shape == (2, 6, 2, 2) and (router.replayed == 0).all()
    # One token of the second row takes another expert in place of its second, another is unknown.
    other = next(e for e in range(5) if e not in routes[1, 2, 0])
    changed = routes.copy()
    changed[1, 2, 0, 1] = other
    changed[0, 4] = UNKNOWN
    moved, router = jax.device_get(forward(model, changed))
    np.testing.assert_allclose(router.replayed, 11)
    assert router.differing[0] == 0.5
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
    assert experts.Router(load, probability, None, None).imbalance == 4


def test_the_sampler_records_the_experts_that_the_learner_replays(small):
    """Where rows are refilled too."""
    model = small(**MIXTURE, eos_ids=(7,))
    prompts = np.array([[3, 4, 5], [6, 0, 2], [9, 1, 2]])
    options = {"key": jax.random.key(0), "group_size": 3, "max_concurrent": 2}
    params = sampling.SamplingParams(max_new_tokens=9)
    samples = jax.device_get(sampling.sample(model, prompts, params, routes=True, **options))
    before = np.repeat(samples.prompt_routes[:, None, :3], 3, axis=1)
    routes = np.concatenate([before, samples.routes], axis=2)
    tokens = np.concatenate([np.repeat(prompts[:, None], 3, axis=1), samples.tokens], axis=2)
    # No expert saw the last token.
    ends = 3 + samples.lengths[..., None]
    known = (routes != UNKNOWN).all((3, 4))
    np.testing.assert_array_equal(known, np.arange(12) < ends - 1)
    found, router = score(model, tokens.reshape(9, 12), routes.reshape(9, 12, 2, 2))
    found = np.where(np.arange(12) < ends, found.reshape(3, 3, 12), 0)[..., 3:]
    np.testing.assert_allclose(found, samples.behavior_logprobs, atol=1e-5)
    assert (router.differing == 0).all() and (router.replayed > 0).all()


def test_the_sampler_routes_by_the_parameters_in_their_precision(small):
    """As the learner does: experts of nearly equal logits are not told apart in bfloat16."""
    model = small(**MIXTURE, num_layers=1, compute_dtype=jnp.bfloat16)
    router = model.layers.router_proj[...]
    # Every second expert is the one before it, a little larger where the logits are above 0.
    near = router[..., ::2] * (1 + 2**-10)
    model.layers.router_proj[...] = router.at[..., 1::2].set(near[..., :2]).at[..., 4].set(0)
    prompts = np.random.default_rng(0).integers(0, 29, (8, 12))
    params = sampling.SamplingParams(max_new_tokens=1)
    options = {"key": jax.random.key(0), "routes": True}
    samples = jax.device_get(sampling.sample(model, prompts, params, **options))
    routes = np.array(samples.prompt_routes[:, :12])
    _, router = jax.device_get(forward(model, routes, np.ones((8, 12), int), prompts))
    # A third of them differed; the rounding of activations may move a few.
    assert router.differing.sum() < 0.02 * router.replayed.sum()


def test_low_rank_terms_of_experts_are_merged(small, tmp_path):
    lora = models.LoraConfig(rank=3, targets=("q_proj", "up_proj", "down_proj"))
    model = small(**MIXTURE, num_layers=1, lora=lora)
    assert model.layers.expert_down_lora_b.shape == (1, 5, 3, 16)
    merged = models.merged(model)
    expected, _ = forward(model)
    np.testing.assert_allclose(forward(merged)[0], expected, atol=1e-3, rtol=1e-3)
    assert models.fingerprint(merged) != models.fingerprint(small(**MIXTURE, num_layers=1))
    again = models.load(models.save(merged, tmp_path / "model"))
    assert models.fingerprint(again) == models.fingerprint(merged)
    with pytest.raises(UsageError):
        models.save_adapter(model, tmp_path / "adapter", base="base")
