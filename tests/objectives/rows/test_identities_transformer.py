"""The identities I1 to I8 through a real transformer: gradients with respect to all of its
parameters, in float64.

The model is the package's own, its norms, softmax and log-probs computed in float64 instead of the
float32 they name. A tolerance is a share of sum_t |d l_t / d parameter| |d loss / d l_t|, the
largest over the parameters: what the backward pass adds up and cancels.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from grre_jax import models
from grre_jax.models import blocked_attention, logprobs, products, rotary, transformer

from ..conftest import Gradients
from ..drawn_cases import GROUPS, QUICK, TIME
from .test_identities import (
    PERTURBATIONS,
    check_i1,
    check_i2,
    check_i3,
    check_i4,
    check_i5,
    check_i6,
    check_i7,
    check_i8,
)

PROMPT = 2
MODULES = (blocked_attention, logprobs, products, rotary, transformer)
CONFIG = models.ModelConfig(
    vocab_size=16,
    hidden_size=8,
    intermediate_size=12,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    qkv_bias=True,
)


class Float64Numpy:
    """jax.numpy in which float32 is float64."""

    float32 = jnp.float64

    def __getattr__(self, name):
        return getattr(jnp, name)


@pytest.fixture(scope="module")
def doubled():
    """The models' modules in float64."""
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "jnp", Float64Numpy())
        yield


def make_params(dtype, seed=0):
    """The structure of the model and its parameters, all of them random."""
    graph, state = nnx.split(
        nnx.eval_shape(lambda: models.Transformer(CONFIG, rngs=nnx.Rngs(0), dtype=dtype))
    )
    random = np.random.default_rng(seed)
    return graph, jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(scale=0.6, size=leaf.shape), dtype), state
    )


class TransformerGradients(Gradients):
    """Gradients with respect to the parameters of the transformer whose log-probs a case's are."""

    def __init__(self):
        super().__init__()
        self.graph, self.params = make_params(jnp.float64)
        self.logprobs = jax.jit(self.policy, **QUICK)
        self._slopes = jax.jit(jax.jacrev(self.policy), **QUICK)

    def policy(self, variables, tokens):
        return models.token_logprobs(nnx.merge(self.graph, variables), tokens)[:, PROMPT:]

    def variables(self, case):
        return self.params

    def flat(self, slope):
        return ravel_pytree(slope)[0]

    def size(self, case, scale):
        slopes = np.concatenate(
            [
                np.reshape(leaf, (*case.mask.shape, -1))
                for leaf in jax.tree.leaves(self._slopes(self.params, case.tokens))
            ],
            -1,
        )
        return np.einsum("rtp,rt->p", np.abs(slopes), super().size(case, scale)).max()

    def case(self, drawn, tokens):
        """A drawn case with the model's log-probs of the tokens, the sampling policy's at the
        same log-ratios, at most 0.
        """
        found = np.asarray(self.logprobs(self.params, tokens))
        old = np.where(drawn.live, np.minimum(found - drawn.moved, 0), drawn.old)
        return drawn.replace(logprobs=found, old=old, tokens=tokens)


@pytest.fixture(scope="module")
def through_transformer(doubled):
    return TransformerGradients()


@st.composite
def token_arrays(draw):
    shape = (len(GROUPS), PROMPT + TIME)
    return (
        np.frombuffer(
            draw(st.binary(min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])), np.uint8
        ).reshape(shape)
        % 16
    )


def within_1e10(assert_within):
    """`assert_within` to 1e-10 of the size of the terms: the passes through the model round too."""
    return lambda actual, expected, scale: assert_within(actual, expected, scale, 1e-10)


NAMES = {
    "i1_surrogate_step_is_reinforce": check_i1,
    "i2_pairwise_is_variance": check_i2,
    "i3_opmd_pointwise": check_i3,
    "i4_asymre_adds_imitation": check_i4,
    "i5_red_weight_splits": check_i5,
    "i6_red_drop_is_reinforce_on_the_kept": check_i6,
    "i7_ppo_clip_is_rec_oneside_is": check_i7,
    "i8_all_agree_on_policy": check_i8,
}


# The others by hand: test_identities has all of them, of the log-probs themselves.
SOME = ("i1_surrogate_step_is_reinforce", "i2_pairwise_is_variance")
SOME += ("i7_ppo_clip_is_rec_oneside_is", "i8_all_agree_on_policy")


@pytest.mark.parametrize(
    "identity",
    [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
def test_through_a_transformer(through_transformer, assert_within, strategies, identity):
    # Fewer than of the log-probs themselves (test_identities): what a model adds to those is
    # linear.
    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(drawn=strategies.small, tokens=token_arrays())
    def run(drawn, tokens):
        NAMES[identity](
            through_transformer, within_1e10(assert_within), through_transformer.case(drawn, tokens)
        )

    run()


def test_the_model_in_float64_is_the_model(doubled, monkeypatch):
    tokens = np.arange(len(GROUPS) * (PROMPT + TIME)).reshape(len(GROUPS), -1) % 16
    found = models.token_logprobs(nnx.merge(*make_params(jnp.float64)), tokens)
    for module in MODULES:
        monkeypatch.setattr(module, "jnp", jnp)
    expected = models.token_logprobs(nnx.merge(*make_params(jnp.float32)), tokens)
    assert found.dtype == jnp.float64 and expected.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "identity", ["i1", *(pytest.param(i, marks=pytest.mark.slow) for i in ("i3", "i5")), "i7"]
)
def test_it_can_fail(through_transformer, assert_within, example, perturb, identity):
    check, name, make = next(row for row in PERTURBATIONS if row[0].__name__ == f"check_{identity}")
    tokens = np.arange(len(GROUPS) * (PROMPT + TIME)).reshape(len(GROUPS), -1) * 7 % 16
    case = through_transformer.case(example, tokens)
    check(through_transformer, within_1e10(assert_within), case)
    perturb(name, make)
    with pytest.raises(AssertionError):
        check(TransformerGradients(), within_1e10(assert_within), case)
