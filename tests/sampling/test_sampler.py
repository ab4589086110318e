import jax
import numpy as np
import pytest

from grre_jax import models, sampling
from grre_jax.models.config import RopeScaling
from grre_jax.sampling import prompt_batch
from grre_jax.sampling.decoding import engine

from ..model_options import OTHER_FAMILIES
from .calls import sample
from .conftest import ENDS, VOCAB

PROMPTS = [[3, 4, 5, 0, 7, 8], [9, 2], [6, 6, 1, 3]]
SHAPE = {"group_size": 5, "max_new_tokens": 7}


@jax.jit
def token_logprobs(model, rows, temperature):
    return models.token_logprobs(model, rows, temperature=temperature)


@pytest.fixture(scope="module")
def model(tiny):
    return tiny(num_layers=1)


@pytest.fixture(scope="module")
def draw(model):
    """Samples of PROMPTS on the host, at the given settings; all of one compiled shape."""

    def call(prompts=PROMPTS, key=0, **options):
        options = SHAPE | {"key": jax.random.key(key)} | options
        return sample(model, prompts, **options)

    return call


def forward(model, prompts, samples, temperature):
    """What the training forward pass gives every completion token: one padded row a completion,
    [prompts, samples, time].
    """
    count, time = samples.tokens.shape[1:]
    out = []
    for prompt, tokens in zip(prompts, samples.tokens, strict=True):
        padding = np.zeros((count, max(map(len, prompts)) - len(prompt)), np.int32)
        rows = np.concatenate([np.tile(prompt, (count, 1)), tokens, padding], axis=1)
        found = token_logprobs(model, rows, np.float32(temperature))
        out.append(found[:, len(prompt) : len(prompt) + time])
    return np.where(np.arange(time) < samples.lengths[..., None], out, 0)


# Windows shorter than the longest prompt, than the completions, and than both together.
ALL_PARTS = {
    "qk_norm": True,
    "activation": "gelu_tanh",
    "unit_offset_norms": True,
    "post_norms": True,
    "scale_embeddings": True,
    "query_scale": 3.0,
    "logit_softcap": 3.0,
    "sliding_layers": (True, False),
    "sliding_window": 4,
    "local_rope_theta": 50.0,
    "rope_scaling": RopeScaling("linear", 4.0),
    "qkv_bias": True,
    "attention_out_bias": True,
    "num_kv_heads": 1,
    "tie_embeddings": False,
}
LATER = OTHER_FAMILIES | {"rotary_share": 0.5}


def check_logprobs(model, prompts, **options):
    """The sampler's log-probs are the forward pass's, at several settings; of the last, greedy one
    only the policy's are numbers. Returns the greatest id that was drawn.
    """
    drawn = []
    for temperature, top_k, top_p in ((0.7, 0, 1.0), (1.4, 6, 0.9), (0.0, 0, 1.0)):
        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        got = sample(model, prompts, **options, **settings)
        drawn.append(got.tokens.max())
        expected = forward(model, prompts, got, 1.0)
        np.testing.assert_allclose(got.policy_logprobs, expected, atol=1e-4)
        if not temperature:
            break
        expected = forward(model, prompts, got, temperature)
        np.testing.assert_allclose(got.behavior_logprobs, expected, atol=1e-4)
        # Truncation only ever makes the kept tokens likelier, and no truncation leaves them as they
        # are.
        difference = got.sampling_logprobs - got.behavior_logprobs
        assert difference.min() > -1e-5
        assert (difference[got.behavior_logprobs != 0].max() > 0.01) == (top_k > 0)
        assert top_k or difference.max() < 1e-5
    return max(drawn)


def test_logprobs_equal_the_training_forward_pass_and_ids_without_text_are_never_drawn(tiny):
    model = tiny(**LATER)
    model.embed[...] = model.embed[...].at[12:].multiply(4)
    model.limit_ids(12)
    assert check_logprobs(model, PROMPTS, key=jax.random.key(1), **SHAPE) < 12


def test_completions_end_with_a_kept_and_scored_eos_or_at_the_limit(draw):
    got = draw()
    steps = np.arange(SHAPE["max_new_tokens"]) - got.lengths[..., None]
    live = steps < 0
    stopped = got.finish_reasons == sampling.FINISH_STOP
    assert {*got.finish_reasons.flat} == {sampling.FINISH_STOP, sampling.FINISH_LENGTH}
    assert (got.lengths[~stopped] == SHAPE["max_new_tokens"]).all()
    # The one EOS token is the last.
    ends = np.isin(got.tokens, ENDS) & live
    np.testing.assert_array_equal(ends, (steps == -1) & stopped[..., None])
    # The pad id is among the ends: a drawn 0 counts and is scored, the zeros after it are not.
    assert (got.tokens[ends] == 0).any() and not got.tokens[~live].any()
    for scores in (got.behavior_logprobs, got.sampling_logprobs, got.policy_logprobs):
        assert (scores[live] < 0).all() and not scores[~live].any()


def test_draws_are_addressed_by_key_position_attempt_and_sample(draw, monkeypatch):
    """And do not depend on what they are computed with: alone, and in a longer row, among other
    neighbours, in refilled rows, with garbage beyond the prompt. (On other devices: test_sharded.)
    """
    first = draw().tokens
    assert len(np.unique(first[0], axis=0)) > 1
    for options in ({"key": 1}, {"attempt": 1}, {"positions": np.array([3, 4, 5])}):
        other = draw(**options).tokens
        assert all(not np.array_equal(other[b], first[b]) for b in range(3)), options
    rows = set()
    advance = engine.advance

    def recorded(shape, *arguments):
        rows.add(shape.decode_slots)
        return advance(shape, *arguments)

    monkeypatch.setattr(engine, "advance", recorded)
    np.testing.assert_array_equal(draw(max_concurrent=8).tokens, first)
    assert rows == {8, 2}  # the last completions are decoded in a quarter of the rows
    other = draw([PROMPTS[1], [1, 2, 3], PROMPTS[0]], positions=np.array([1, 50, 0]))
    np.testing.assert_array_equal(other.tokens[[2, 0]], first[:2])
    padded, lengths = sampling.pad_prompts([PROMPTS[1]], 9)
    padded[0, lengths[0] :] = 13
    alone = draw(padded, prompt_lengths=lengths, positions=np.array([1]), group_size=1)
    np.testing.assert_array_equal(alone.tokens[0, 0], first[1, 0])


def test_an_empty_prompt_begins_with_the_models_first_token(model, draw):
    empty, begun = (draw([first, *PROMPTS[1:]]) for first in ([], [model.config.start_id]))
    np.testing.assert_array_equal(empty.tokens, begun.tokens)


def test_other_numbers_compile_nothing(draw):
    draw()
    before = engine.advance._cache_size()
    draw(temperature=0.3, top_p=0.5, top_k=3, min_p=0.1, eos_ids=(1, 2, 3), max_new_tokens=6)
    draw([[1, 2, 3, 4, 5, 6], [7], [8, 9]], key=9, attempt=4, positions=np.array([7, 8, 9]))
    assert engine.advance._cache_size() == before


@pytest.mark.parametrize(
    "change, named",
    [
        ({"prompts": [[1], [2, VOCAB]]}, f"from 0 to {VOCAB - 1}.*prompt 1"),
        ({"prompts": []}, "prompts"),
        ({"positions": [0, 1, 2**32]}, "positions"),
        ({"cache_dtype": "int8"}, "cache_dtype"),
        ({"stop": ("A",)}, "decode"),
        ({"key": 0}, "key"),
        ({"key": jax.random.key(0, impl="rbg")}, "key"),
    ],
)
def test_errors_name_the_argument(model, change, named):
    arguments = {"prompts": PROMPTS, "key": jax.random.key(0), **SHAPE} | change
    with pytest.raises(ValueError, match=named):
        sample(model, **arguments)


def test_whole_numbers_are_taken_from_the_least_one_to_those_of_32_bits():
    assert prompt_batch.whole("rows", np.int64(1), 1) == 1
    assert prompt_batch.whole("rows", 2**31 - 1, 1) == 2**31 - 1
    for value in (0, 2**31, 1.0):
        with pytest.raises(ValueError, match=f"rows.* 1 to {2**31 - 1},"):
            prompt_batch.whole("rows", value, 1)


def test_sizes_are_rounded_up_to_few_and_prompts_to_one_of_them(model):
    sizes = [prompt_batch.bucket(n, 1) for n in (1, 2, 3, 4, 5, 7, 9, 13, 17, 25)]
    assert sizes == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert [prompt_batch.bucket(n) for n in (1, 12, 16, 17)] == [16, 16, 16, 24]
    batch = prompt_batch.make_prompt_batch(model.config, [[1] * 17], 1, 8, jax.random.key(0))
    assert batch.prompts.shape[1] == 24
