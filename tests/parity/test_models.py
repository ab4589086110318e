"""Live against transformers: logits of random checkpoints, folders written here, greedy continuations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # torch's spinning threads and XLA's slow each other down on few cores

SMALL = dict(num_hidden_layers=3, max_position_embeddings=512, bos_token_id=None, eos_token_id=None)


def llama(**fields):
    return transformers.LlamaConfig(**SMALL | fields)


def qwen2(**fields):
    return transformers.Qwen2Config(**SMALL | fields)


def qwen3(**fields):
    return transformers.Qwen3Config(**SMALL | fields)


def shape(vocab, hidden, inner, heads, kv, **others):
    sizes = dict(vocab_size=vocab, hidden_size=hidden, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=kv)
    return sizes | others


CONFIGS = {
    "llama": (llama, shape(131, 64, 96, 8, 2, tie_word_embeddings=False)),
    "llama-one-key-head": (llama, shape(100, 48, 50, 6, 1, head_dim=12, tie_word_embeddings=True, rope_theta=1e5, rms_norm_eps=1e-5)),
    "llama-bias": (llama, shape(97, 32, 64, 4, 4, attention_bias=True, tie_word_embeddings=True)),
    "qwen2": (qwen2, shape(150, 60, 128, 6, 3, rope_theta=1e6, tie_word_embeddings=True)),
    "qwen2-untied": (qwen2, shape(64, 28, 40, 2, 1, rope_theta=1e4, tie_word_embeddings=False)),
    "qwen3": (qwen3, shape(111, 64, 90, 8, 4, head_dim=16, rope_theta=1e6, tie_word_embeddings=True)),
    "qwen3-wide-heads": (qwen3, shape(80, 40, 64, 5, 5, head_dim=26, rope_theta=5e6, tie_word_embeddings=False, attention_bias=True)),
}


@pytest.fixture(params=CONFIGS)
def theirs(request):
    """A model of transformers in float32 whose every parameter is random."""
    make, fields = CONFIGS[request.param]
    torch.manual_seed(sorted(CONFIGS).index(request.param))
    model = transformers.AutoModelForCausalLM.from_config(make(**fields), dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape)
            p.copy_(1 + 0.2 * noise if "norm" in name else noise * (0.3 if p.ndim == 1 else p.shape[1] ** -0.5))
    return model


def their_logits(model, tokens):
    with torch.no_grad():
        return model(torch.as_tensor(np.array(tokens))).logits.numpy()


@nnx.jit
def our_logits(model, tokens):
    return model.logits(model(tokens))


def draw_tokens(vocab, length=300, rows=2):
    return jax.random.randint(jax.random.key(0), (rows, length), 0, vocab)


def test_logits_of_a_checkpoint_written_by_transformers(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    ours = models.load(tmp_path)
    tokens = draw_tokens(ours.config.vocab_size)
    np.testing.assert_allclose(our_logits(ours, tokens), their_logits(theirs, tokens), atol=1e-4, rtol=0)


def test_logits_of_a_sharded_half_precision_checkpoint(theirs, tmp_path):
    theirs.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = models.load(tmp_path)
    tokens = draw_tokens(ours.config.vocab_size, length=20)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    np.testing.assert_allclose(our_logits(ours, tokens), their_logits(again, tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("max_file_bytes", [1 << 30, 30_000])
def test_transformers_loads_what_is_saved_here(theirs, tmp_path, dtype, max_file_bytes):
    theirs.save_pretrained(tmp_path / "theirs")
    ours = models.load(tmp_path / "theirs", dtype=dtype)
    models.save(ours, tmp_path / "ours", max_file_bytes=max_file_bytes)
    again, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert type(again) is type(theirs) and again.dtype == {jnp.float32: torch.float32, jnp.bfloat16: torch.bfloat16}[dtype]
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.to(again.dtype)), name
    if dtype == jnp.float32:
        tokens = draw_tokens(ours.config.vocab_size, length=40)
        np.testing.assert_allclose(our_logits(ours, tokens), their_logits(again, tokens), atol=1e-4, rtol=0)


def test_greedy_continuations(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    ours = models.load(tmp_path)
    prompt, new = draw_tokens(ours.config.vocab_size, length=7, rows=3), 25
    given = torch.as_tensor(np.array(prompt))
    wanted = theirs.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=new, do_sample=False)
    tokens = jnp.pad(prompt, ((0, 0), (0, new)))
    for end in range(prompt.shape[1], tokens.shape[1]):
        tokens = tokens.at[:, end].set(our_logits(ours, tokens)[:, end - 1].argmax(-1))
    np.testing.assert_array_equal(tokens, wanted.numpy())


def test_token_logprobs_and_their_gradients(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    ours = models.load(tmp_path)
    tokens = draw_tokens(ours.config.vocab_size, length=30)
    logprobs, gradient = jax.jit(jax.value_and_grad(lambda embed: score(ours, embed, tokens), has_aux=True))(ours.embed[...])
    batch = torch.as_tensor(np.array(tokens)).long()
    full = torch.log_softmax(theirs(batch).logits[:, :-1], -1)
    wanted = torch.gather(full, 2, batch[:, 1:, None])[:, :, 0]
    wanted.mean().backward()
    np.testing.assert_allclose(logprobs[1][:, 1:], wanted.detach().numpy(), atol=1e-4)
    np.testing.assert_allclose(gradient, theirs.get_input_embeddings().weight.grad.numpy(), atol=1e-5)


def score(model, embed, tokens):
    """Mean log-prob of the tokens after the first under the model with another embedding, and all log-probs."""
    graph, params = nnx.split(model)
    changed = nnx.merge(graph, nnx.to_pure_dict(params) | {"embed": embed})
    logprobs = models.token_logprobs(changed, tokens)
    return logprobs[:, 1:].mean(), logprobs
