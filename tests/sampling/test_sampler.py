import jax
import numpy as np
import pytest
from flax import nnx

from grre_jax import models, sampling
from grre_jax.models.config import RopeScaling
from grre_jax.sampling.decoding import engine

from .calls import sample

VOCAB = 24
ENDS = (0, 5, 11, 17)  # 0 is also what rows are padded with
PROMPTS = [[3, 4, 5, 0, 7, 8], [9, 2], [6, 6, 1, 3]]
SHAPE = {"group_size": 5, "max_new_tokens": 7}


@jax.jit
def token_logprobs(model, rows, temperature):
    return models.token_logprobs(model, rows, temperature=temperature)


@jax.jit
def logits(model, rows):
    return model.logits(model(rows))


@pytest.fixture(scope="module")
def model(tiny):
    return tiny()


@pytest.fixture(scope="module")
def draw(model):
    """Samples of PROMPTS on the host, at the given settings; all of one compiled shape."""

    def call(prompts=PROMPTS, key=0, **options):
        return jax.device_get(sample(model, prompts, key=jax.random.key(key), **SHAPE | options))

    return call


def forward(model, prompts, samples, temperature):
    """What the training forward pass gives every completion token: one padded row a completion,
    [prompts, samples, time].
    """
    count, time = samples.tokens.shape[1:]
    width = max(map(len, prompts)) + time
    rows = np.zeros((len(prompts), count, width), np.int32)
    for b, prompt in enumerate(prompts):
        rows[b, :, : len(prompt)] = prompt
        for k, length in enumerate(samples.lengths[b]):
            rows[b, k, len(prompt) : len(prompt) + length] = samples.tokens[b, k, :length]
    scores = np.asarray(
        token_logprobs(model, rows.reshape(-1, width), np.float32(temperature))
    ).reshape(rows.shape)
    out = np.zeros(samples.tokens.shape, np.float32)
    for b, prompt in enumerate(prompts):
        for k, length in enumerate(samples.lengths[b]):
            out[b, k, :length] = scores[b, k, len(prompt) : len(prompt) + length]
    return out


# Windows shorter than the longest prompt, than the completions, and than both together.
GEMMA = {
    "qk_norm": True,
    "activation": "gelu_tanh",
    "unit_offset_norms": True,
    "post_norms": True,
    "scale_embeddings": True,
    "query_scale": 3.0,
    "attention_softcap": 2.0,
    "logit_softcap": 3.0,
    "sliding_layers": (True, False),
    "sliding_window": 4,
    "local_rope_theta": 50.0,
    "rope_scaling": RopeScaling("linear", 4.0),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "qk_norm": True,
            "qkv_bias": True,
            "attention_out_bias": True,
            "num_kv_heads": 1,
            "tie_embeddings": False,
        },
        GEMMA,
        {
            "sliding_layers": (True, True),
            "sliding_window": 9,
            "rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 16),
        },
    ],
    ids=["plain", "all_parts", "gemma", "windows"],
)
def test_logprobs_equal_the_training_forward_pass(tiny, options):
    model = tiny(**options)
    for temperature, top_k, top_p in ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.4, 6, 0.9)):
        got = jax.device_get(
            sample(
                model,
                PROMPTS,
                key=jax.random.key(1),
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                **SHAPE,
            )
        )
        np.testing.assert_allclose(
            got.behavior_logprobs, forward(model, PROMPTS, got, temperature), atol=1e-4
        )
        np.testing.assert_allclose(
            got.policy_logprobs, forward(model, PROMPTS, got, 1.0), atol=1e-4
        )
        difference = got.sampling_logprobs - got.behavior_logprobs
        # Truncation only ever makes the kept tokens likelier, and no truncation leaves them as they
        # are.
        assert (
            (difference[got.behavior_logprobs != 0] > 0.01).any()
            if top_k
            else np.abs(difference).max() < 1e-5
        )
        assert difference.min() > -1e-5


def test_ids_without_text_are_never_drawn(tiny):
    model = tiny()
    live = model.config.vocab_size // 2
    model.embed[...] = model.embed[...].at[live:].multiply(4)
    model.limit_ids(live)
    for options in (
        {},
        {"temperature": 0.7, "top_k": live + 2, "top_p": 0.9},
        {"temperature": 0.0},
    ):
        got = jax.device_get(sample(model, PROMPTS, key=jax.random.key(1), **SHAPE | options))
        assert got.tokens.max() < live
        np.testing.assert_allclose(
            got.policy_logprobs, forward(model, PROMPTS, got, 1.0), atol=1e-4
        )
    model.limit_ids(model.config.vocab_size)
    free = jax.device_get(sample(model, PROMPTS, key=jax.random.key(1), **SHAPE))
    assert model.num_ids is None and free.tokens.max() >= live


def test_completions_end_with_a_kept_and_scored_eos_or_at_the_limit(draw):
    got = draw()
    time = np.arange(SHAPE["max_new_tokens"])
    live = time < got.lengths[..., None]
    is_end = np.isin(got.tokens, ENDS) & live
    stopped = got.finish_reasons == sampling.FINISH_STOP
    assert {sampling.FINISH_STOP, sampling.FINISH_LENGTH} == set(
        got.finish_reasons.reshape(-1).tolist()
    )
    np.testing.assert_array_equal(is_end.sum(-1), stopped)
    last = np.take_along_axis(got.tokens, got.lengths[..., None] - 1, -1)[..., 0]
    assert np.isin(last[stopped], ENDS).all() and not np.isin(last[~stopped], ENDS).any()
    assert (got.lengths[~stopped] == SHAPE["max_new_tokens"]).all() and got.lengths.min() >= 1
    # The pad id is among the ends: a drawn 0 counts and is scored, the zeros after it are not.
    assert (last[stopped] == 0).any()
    for scores in (got.behavior_logprobs, got.sampling_logprobs, got.policy_logprobs):
        assert (scores[live] < 0).all() and not scores[~live].any()
    assert not got.tokens[~live].any()


def test_greedy_is_the_argmax_of_the_forward_pass_for_every_sample(model, draw):
    got = draw(temperature=0.0)
    assert (got.tokens == got.tokens[:, :1]).all()
    for b, prompt in enumerate(PROMPTS):
        length = got.lengths[b, 0]
        row = np.zeros((1, 16), np.int32)
        row[0, : len(prompt) + length] = [*prompt, *got.tokens[b, 0, :length]]
        best = np.asarray(logits(model, row).argmax(-1))[0, len(prompt) - 1 :]
        np.testing.assert_array_equal(best[:length], got.tokens[b, 0, :length])
    assert not got.behavior_logprobs.any() and not got.sampling_logprobs.any()
    np.testing.assert_allclose(got.policy_logprobs, forward(model, PROMPTS, got, 1.0), atol=1e-4)


def test_a_completion_does_not_depend_on_what_it_is_computed_with(model, draw):
    together = draw()

    # Alone, with one sample only.
    alone = draw([PROMPTS[1]], positions=np.array([1]), group_size=1)
    np.testing.assert_array_equal(alone.tokens[0, 0], together.tokens[1, 0])
    # In a longer row, among other neighbours, with garbage beyond the prompt.
    padded, lengths = sampling.pad_prompts([PROMPTS[1], [1, 2, 3], PROMPTS[0]], 9)
    padded[0, lengths[0] :] = 13
    other = draw(padded, prompt_lengths=lengths, positions=np.array([1, 50, 0]))
    np.testing.assert_array_equal(other.tokens[0], together.tokens[1])
    np.testing.assert_array_equal(other.tokens[2], together.tokens[0])


def test_draws_are_addressed_by_key_position_attempt_and_sample(draw):
    first = draw().tokens
    np.testing.assert_array_equal(first, draw().tokens)
    assert len(np.unique(first[0], axis=0)) > 1
    for options in ({"key": 1}, {"attempt": 1}, {"positions": np.array([3, 4, 5])}):
        other = draw(**options).tokens
        assert all(not np.array_equal(other[b], first[b]) for b in range(3)), options
    np.testing.assert_array_equal(draw(positions=np.array([0, 1, 5])).tokens[:2], first[:2])


def test_other_numbers_compile_nothing(draw):
    draw()
    before = engine.advance._cache_size()
    for options in (
        {"temperature": 0.3},
        {"top_p": 0.5},
        {"top_k": 3},
        {"key": 9},
        {"attempt": 4},
        {"positions": np.array([7, 8, 9])},
        {"temperature": 0.0},
    ):
        draw(**options)
    draw([[1, 2, 3, 4, 5, 6], [7], [8, 9]])
    assert engine.advance._cache_size() == before


@pytest.mark.slow
def test_keys_of_another_kind_are_addresses_too(model):
    """jax's rbg keys draw for many keys at once from the first of them alone."""

    def draw(prompts, samples, **options):
        key = jax.random.key(3, impl="rbg")
        return jax.device_get(
            sample(model, prompts, key=key, **SHAPE | {"group_size": samples} | options)
        ).tokens

    together = draw(PROMPTS, 5)
    np.testing.assert_array_equal(draw(PROMPTS, 5, max_concurrent=2), together)
    np.testing.assert_array_equal(draw(PROMPTS[2:], 3, positions=[2]), together[2:, :3])
    assert len(np.unique(together.reshape(15, -1), axis=0)) > 5


def test_the_same_parameters_in_another_model_are_another_policy(tiny):
    """Prepared weights are kept for the model that they were prepared for."""
    first = tiny()
    other = nnx.merge(nnx.split(tiny(attention_softcap=0.2))[0], nnx.split(first)[1])
    found = [
        jax.device_get(sample(model, PROMPTS, key=jax.random.key(0), **SHAPE))
        for model in (first, other)
    ]
    alone = jax.device_get(
        sample(sampling.prepared(other), PROMPTS, key=jax.random.key(0), **SHAPE)
    )
    np.testing.assert_array_equal(found[1].policy_logprobs, alone.policy_logprobs)
    assert not np.array_equal(found[0].policy_logprobs, alone.policy_logprobs)


@pytest.mark.parametrize(
    "change, named",
    [
        ({"prompts": [1, 2]}, "prompts must be lists"),
        ({"prompts": [[1], [1.7]]}, "prompt 1 must be a list of token ids"),
        (
            {"prompts": [[1], [2, VOCAB]]},
            f"prompt 1 has token {VOCAB} at index 1, and the model's tokens are 0 to {VOCAB - 1}",
        ),
        ({"prompts": [[1]], "prompt_lengths": np.array([1])}, "without prompt_lengths, got list"),
        ({"positions": [0]}, r"positions must be \[3\] whole numbers"),
        ({"positions": [0, 1, 2**32]}, "positions must fit 32 bits"),
        ({"attempt": 2**31}, "attempt must be a whole number from 0 to 2147483647"),
        ({"group_size": 2.0}, "group_size must be a whole number from 1"),
        ({"max_concurrent": 1.5}, "max_concurrent must be a whole number from 1"),
        ({"eos_ids": (5.5,)}, "eos_ids must be token ids"),
        ({"limits": [1.5, 1, 1]}, "limits must be .* got float64"),
        ({"limits": [3, 9, 1]}, r"\[3, 9, 1\]"),
        ({"prompts": []}, "non-empty"),
        (
            {"prompts": np.ones((2, 3), int), "prompt_lengths": np.array([1, 2, 3])},
            "one length each",
        ),
        ({"prompts": np.ones((2, 3), int), "prompt_lengths": np.array([0, 2])}, "prompt_lengths"),
        ({"key": 0}, "key"),
    ],
)
def test_errors_name_the_argument(model, change, named):
    arguments = {"prompts": PROMPTS, "key": jax.random.key(0), **SHAPE} | change
    with pytest.raises(ValueError, match=named):
        sample(model, arguments.pop("prompts"), **arguments)


def test_stop_strings_end_completions_with_the_token_that_completes_them(draw):
    def letters(tokens):
        return "".join(chr(ord("A") + int(token)) for token in tokens)

    whole = draw()
    stop = letters(whole.tokens[np.unravel_index(whole.lengths.argmax(), whole.lengths.shape)][1:3])
    got = draw(stop=(stop,), decode=letters)
    changed = 0
    for at in np.ndindex(whole.lengths.shape):
        drawn = letters(whole.tokens[at][: whole.lengths[at]])
        end = drawn.index(stop) + len(stop) if stop in drawn else len(drawn)
        changed += end < len(drawn)
        np.testing.assert_array_equal(got.tokens[at][:end], whole.tokens[at][:end])
        assert got.lengths[at] == end and not got.tokens[at][end:].any()
        assert not got.behavior_logprobs[at][end:].any()
        np.testing.assert_array_equal(
            got.policy_logprobs[at][:end], whole.policy_logprobs[at][:end]
        )
        expected = sampling.FINISH_STOP if stop in drawn else whole.finish_reasons[at]
        assert got.finish_reasons[at] == expected
    assert changed
    with pytest.raises(ValueError, match="decode must be given with params.stop"):
        draw(stop=("A",))
