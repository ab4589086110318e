"""Live against transformers: logits of random checkpoints, folders written here, greedy
continuations.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import models, sampling
from grre_jax.models.checkpoints import export
from grre_jax.models.rotary import rope_frequencies

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # torch's spinning threads and XLA's slow each other down on few cores

# How a family is drawn: its configuration's class, and which options it has.
FAMILIES = {
    "llama": (transformers.LlamaConfig, {"bias", "scaling"}),
    "smollm2": (transformers.LlamaConfig, set()),
    "qwen2": (transformers.Qwen2Config, {"scaling", "window"}),
    "qwen3": (transformers.Qwen3Config, {"bias", "scaling", "window"}),
    "gemma3": (transformers.Gemma3TextConfig, {"bias", "scaling", "window", "softcap"}),
}
OPTIONS = ("bias", "scaling", "window", "softcap")
DRAWS = 3
PROMPT, NEW = 17, 64


def draw_config(family, seed):
    """A tiny configuration with every option of the family drawn."""
    make, options = FAMILIES[family]
    random = np.random.default_rng([sorted(FAMILIES).index(family), seed])

    def on(option):
        # Off in one of the draws, not in the same as the next option.
        return (
            option in options
            and (sorted(FAMILIES).index(family) + OPTIONS.index(option)) % DRAWS != seed
        )

    kv, group = [(3, 1), (2, 3), (1, 6)][seed]
    layers = int(random.integers(2, 6))
    head_dim = [40, 10, 80][seed]
    heads = kv * group
    fields = dict(
        vocab_size=int(random.integers(50, 200)),
        hidden_size=heads * (int(random.choice([24, 33, 42])) // heads),
        intermediate_size=int(random.integers(30, 100)),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=head_dim,
        tie_word_embeddings=bool(seed % 2),
        rms_norm_eps=[1e-5, 1e-6, 1e-5][seed],
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    theta = float(random.choice([1e2, 1e4, 1e6]))
    scaling = {"rope_type": "default"}
    if on("scaling"):
        llama3 = dict(
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=int(random.choice([32, 64])),
        )
        scaling = [
            {"rope_type": "linear", "factor": 3.0},
            {"rope_type": "llama3", "factor": 8.0, **llama3},
        ][int(random.integers(2))]
    if on("bias"):
        fields |= dict(attention_bias=True)
    window = int(random.integers(3, 40))
    both = ["full_attention", "sliding_attention"]
    kinds = [str(kind) for kind in random.permutation([*both, *random.choice(both, layers - 2)])]
    if family == "gemma3":
        fields |= dict(
            sliding_window=window, query_pre_attn_scalar=int(random.choice([7, head_dim]))
        )
        if not on("window") or seed == 0:
            fields |= dict(layer_types=kinds if on("window") else ["full_attention"] * layers)
        else:  # transformers 4's way to say it
            fields |= dict(sliding_window_pattern=int(random.integers(2, 4)))
        local = {"rope_type": "default", "rope_theta": float(random.choice([1e1, 1e4]))}
        rope = {"full_attention": scaling | {"rope_theta": theta}, "sliding_attention": local}
        if on("softcap"):
            fields |= dict(
                final_logit_softcapping=float(random.choice([2.0, 30.0])),
                attn_logit_softcapping=1.5,
            )
    else:
        rope = scaling | {"rope_theta": theta}
        if on("window"):
            fields |= dict(use_sliding_window=True, sliding_window=window)
            fields |= (
                dict(layer_types=kinds)
                if seed == 0
                else dict(max_window_layers=int(random.integers(1, layers)))
            )
    return make(**fields, rope_parameters=rope)


@pytest.fixture(
    params=[(family, seed) for family in FAMILIES for seed in range(DRAWS)],
    ids=lambda drawn: f"{drawn[0]}-{drawn[1]}",
)
def theirs(request):
    """A model of transformers in float32 of a random configuration, whose every parameter is
    random.
    """
    family, seed = request.param
    torch.manual_seed(seed)
    config = draw_config(family, seed)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    centre = 0 if family == "gemma3" else 1  # Gemma's norms multiply by 1 + weight
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape)
            p.copy_(
                centre + 0.2 * noise
                if "norm" in name
                else noise * (0.3 if p.ndim == 1 else p.shape[1] ** -0.5)
            )
    return model


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("factor, fast, slow", [(4.0, 32, 1), (2.5, 8, 2), (40.0, 3, 3)])
def test_yarn_frequencies(truncate, factor, fast, slow):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields = {"rope_type": "yarn", "factor": factor, "beta_fast": fast, "beta_slow": slow}
    fields |= {"original_max_position_embeddings": 256, "truncate": truncate, "rope_theta": 1e4}
    sizes = dict(hidden_size=64, num_attention_heads=2, num_key_value_heads=2, vocab_size=9)
    sizes |= dict(num_hidden_layers=1, intermediate_size=8, max_position_embeddings=256)
    config = transformers.Qwen2Config(**sizes, rope_parameters=fields)
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config, device="cpu")
    ours = models.config_from_dict(sizes | {"model_type": "qwen2", "rope_parameters": fields})
    found = rope_frequencies(32, 1e4, ours.rope_scaling)
    np.testing.assert_allclose(found, frequencies.numpy(), rtol=1e-5)
    assert ours.rope_scaling.attention_factor == pytest.approx(attention_factor)


def test_the_text_model_of_gemma_3_with_images(tmp_path):
    text = dict(vocab_size=41, hidden_size=24, intermediate_size=26, num_hidden_layers=3)
    text |= dict(num_attention_heads=4, num_key_value_heads=2, head_dim=10, sliding_window=4)
    vision = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    vision |= dict(image_size=28, patch_size=14)
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, image_token_index=40, mm_tokens_per_image=4
    )
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(config).float().eval()
    model.save_pretrained(tmp_path)
    tokens = np.random.default_rng(0).integers(0, 40, (2, 11))
    with torch.no_grad():
        wanted = model(torch.tensor(tokens)).logits.numpy()
    ours = models.load(tmp_path)
    np.testing.assert_allclose(ours.logits(ours(tokens)), wanted, atol=1e-4)


def their_logits(model, tokens):
    with torch.no_grad():
        return model(torch.as_tensor(np.array(tokens))).logits.numpy()


@nnx.jit
def our_logits(model, tokens):
    return model.logits(model(tokens))


def draw_tokens(vocab, length=300):
    """Two rows; of one length wherever logits are compared, so that a model is compiled for them
    once.
    """
    return jax.random.randint(jax.random.key(0), (2, length), 0, vocab)


def test_logits_of_a_checkpoint_written_by_transformers(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    ours = models.load(tmp_path)
    tokens = draw_tokens(ours.config.vocab_size)
    np.testing.assert_allclose(
        our_logits(ours, tokens), their_logits(theirs, tokens), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(
    ("dtype", "max_file_bytes"), [(jnp.float32, 30_000), (jnp.bfloat16, 1 << 30)]
)
def test_transformers_loads_what_is_saved_here(
    theirs, tmp_path, monkeypatch, dtype, max_file_bytes
):
    monkeypatch.setattr(export, "MAX_FILE_BYTES", max_file_bytes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = models.load(tmp_path / "theirs", dtype=dtype)
    models.save(ours, tmp_path / "ours")
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(info.values()), info
    assert (
        type(again) is type(theirs)
        and again.dtype == {jnp.float32: torch.float32, jnp.bfloat16: torch.bfloat16}[dtype]
    )
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.to(again.dtype)), name
    if dtype == jnp.float32:
        tokens = draw_tokens(ours.config.vocab_size)
        np.testing.assert_allclose(
            our_logits(ours, tokens), their_logits(again, tokens), atol=1e-4, rtol=0
        )


@pytest.fixture
def continued(theirs):
    """(prompts, transformers' greedy continuations), [2, tokens] each."""
    prompts = draw_tokens(theirs.config.vocab_size)[:, :PROMPT]
    given = torch.tensor(np.asarray(prompts))
    found = theirs.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=NEW, do_sample=False
    ).numpy()
    return np.asarray(prompts), found[:, PROMPT:]


def assert_greedy(theirs, prompts, wanted, got):
    """The same tokens; they may part only where the two best logits are one up to rounding, in
    transformers' own forward pass too.
    """
    for row, (mine, other) in enumerate(zip(np.asarray(got), wanted, strict=True)):
        if (mine == other).all():
            continue
        first = int(np.argmax(mine != other))
        logits = their_logits(theirs, np.concatenate([prompts[row], other[:first]])[None])[0, -1]
        assert logits.max() - logits[mine[first]] < 1e-4, (row, first)


@pytest.mark.parametrize(
    # SmolLM2's own weights: test_smollm2.
    "theirs",
    [(family, 1) for family in FAMILIES if family != "smollm2"],
    ids=lambda drawn: drawn[0],
    indirect=True,
)
def test_the_sampler_continues_greedily(theirs, continued, tmp_path):
    theirs.save_pretrained(tmp_path)
    prompts, wanted = continued
    params = sampling.SamplingParams(max_new_tokens=NEW, temperature=0.0)
    key = jax.random.key(0)
    found = sampling.sample(models.load(tmp_path), prompts.tolist(), params, key=key)
    assert_greedy(theirs, prompts, wanted, found.tokens[:, 0])


def test_token_logprobs_and_their_gradients(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    ours = models.load(tmp_path)
    tokens = draw_tokens(ours.config.vocab_size, length=30)
    logprobs, gradient = jax.jit(
        jax.value_and_grad(lambda embed: score(ours, embed, tokens), has_aux=True)
    )(ours.embed[...])
    batch = torch.as_tensor(np.array(tokens)).long()
    theirs.double()  # both in float32 are apart by more than either is from this
    full = torch.log_softmax(theirs(batch).logits[:, :-1], -1)
    wanted = torch.gather(full, 2, batch[:, 1:, None])[:, :, 0]
    wanted.mean().backward()
    np.testing.assert_allclose(logprobs[1][:, 1:], wanted.detach().numpy(), atol=1e-4)
    np.testing.assert_allclose(
        gradient, theirs.get_input_embeddings().weight.grad.numpy(), atol=1e-5
    )


def score(model, embed, tokens):
    """Mean log-prob of the tokens after the first under the model with another embedding, and
    all log-probs.
    """
    graph, params = nnx.split(model)
    changed = nnx.merge(graph, nnx.to_pure_dict(params) | {"embed": embed})
    logprobs = models.token_logprobs(changed, tokens)
    return logprobs[:, 1:].mean(), logprobs
