"""Live against transformers: every family at random small configurations.

GRRE_PARITY_DRAWS is the number of configurations of each family.
"""

import copy
import os
from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx

from grre_jax import models, sampling
from grre_jax.models.checkpoints import export, streaming
from grre_jax.models.checkpoints.family_table import FAMILIES
from grre_jax.models.rotary import rope_frequencies

torch = pytest.importorskip("torch", reason="extra parity")
transformers = pytest.importorskip("transformers", reason="extra parity")
pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # torch's spinning threads and XLA's slow each other down on few cores

DRAWS = int(os.environ.get("GRRE_PARITY_DRAWS", "1"))
LENGTH = 40
PROMPT = 8
NEW = 32


def window(random, sizes):
    """A window or none, for all layers."""
    return {"sliding_window": [None, int(random.integers(3, 20))][random.integers(2)]}


def listed(random, sizes):
    """A window and the kind of each layer, or those of a configuration without them."""
    kinds = ["full_attention", "sliding_attention"]
    layers = [kinds[one] for one in random.integers(0, 2, sizes["num_hidden_layers"])]
    chosen = {"layer_types": layers} if random.integers(3) else {}
    return {"sliding_window": int(random.integers(3, 20)), **chosen}


def bias(random, sizes):
    return {"attention_bias": bool(random.integers(2))}


def gemma2(random, sizes):
    caps = {
        "attn_logit_softcapping": [None, 0.5, 20.0][random.integers(3)],
        "final_logit_softcapping": [None, 2.0][random.integers(2)],
    }
    scale = int(random.choice([7, sizes["head_dim"]]))
    return listed(random, sizes) | bias(random, sizes) | caps | {"query_pre_attn_scalar": scale}


def granite(random, sizes):
    names = "embedding_multiplier residual_multiplier attention_multiplier logits_scaling".split()
    values = {name: float(random.choice([0.3, 0.8, 1.7])) for name in names}
    values["attention_multiplier"] = float(random.choice([0.1, 0.4]))
    return values | bias(random, sizes) | scaling(random, sizes)


def olmo3(random, sizes):
    full = rope(random) | {"rope_theta": 100.0}
    both = {"full_attention": full, "sliding_attention": {"rope_type": "default"}}
    both["sliding_attention"] |= {"rope_theta": float(random.choice([10.0, 1e4]))}
    return listed(random, sizes) | bias(random, sizes) | {"rope_parameters": both}


def smollm3(random, sizes):
    layers = sizes["num_hidden_layers"]
    some = {"no_rope_layers": random.integers(0, 2, layers).tolist()}
    slides = {"use_sliding_window": True} | listed(random, sizes)
    chosen = [some, {"no_rope_layer_interval": 2}][random.integers(2)]
    return chosen | [{}, slides][random.integers(2)] | bias(random, sizes)


def exaone4(random, sizes):
    layers = ["full_attention"] * sizes["num_hidden_layers"]
    whole = {"sliding_window": None, "layer_types": layers}
    pattern = {"sliding_window": 5, "sliding_window_pattern": 2}
    return [whole, pattern, listed(random, sizes)][random.integers(3)]


def rope(random):
    linear = {"rope_type": "linear", "factor": 3.0}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    return [{"rope_type": "default"}, linear, yarn][random.integers(3)]


def scaling(random, sizes):
    return {"rope_parameters": rope(random) | {"rope_theta": float(random.choice([1e2, 1e4]))}}


def some_rotated(random, sizes):
    share = float(random.choice([0.4, 0.8, 1.0]))
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}} | {
        "partial_rotary_factor": share
    }


def glm(random, sizes):
    return bias(random, sizes) | some_rotated(random, sizes)


def seed_oss(random, sizes):
    out = {"attention_out_bias": bool(random.integers(2)), "residual_dropout": 0.0}
    return bias(random, sizes) | out | {"attention_dropout": 0.0} | scaling(random, sizes)


def experts(random, sizes):
    count = int(random.integers(3, 7))
    return {
        "num_experts": count,
        "num_experts_per_tok": int(random.integers(1, count)),
        "norm_topk_prob": bool(random.integers(2)),
    }


def mixtral(random, sizes):
    found = experts(random, sizes)
    del found["norm_topk_prob"]
    return {"num_local_experts": found.pop("num_experts")} | found | window(random, sizes)


def qwen3_moe(random, sizes):
    width = {"moe_intermediate_size": int(random.integers(20, 50))}
    return experts(random, sizes) | width | bias(random, sizes)


def llama3(random, sizes):
    fields = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    given = scaling(random, sizes)
    if random.integers(2):
        given["rope_parameters"] |= fields | {"original_max_position_embeddings": 16}
    return given


def qwen(random, sizes):
    slides = {"use_sliding_window": True} | listed(random, sizes)
    some = int(random.integers(1, sizes["num_hidden_layers"]))
    first = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": some}
    return [{}, slides, first][random.integers(3)] | scaling(random, sizes)


def gemma3(random, sizes):
    caps = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0}
    scale = {"query_pre_attn_scalar": int(random.choice([7, sizes["head_dim"]]))}
    both = olmo3(random, sizes)
    return both | scale | [{}, caps][random.integers(2)]


DRAWN = {
    "llama": lambda *a: bias(*a) | llama3(*a),
    "qwen2": qwen,
    "qwen3": lambda *a: bias(*a) | qwen(*a),
    "gemma3_text": gemma3,
    "mistral": lambda *a: window(*a) | scaling(*a),
    "ministral": lambda *a: listed(*a) | scaling(*a),
    "seed_oss": seed_oss,
    "gemma": bias,
    "olmo2": lambda *a: bias(*a) | scaling(*a),
    "olmo3": olmo3,
    "exaone4": exaone4,
    "phi3": lambda *a: window(*a) | some_rotated(*a),
    "glm": glm,
    "glm4": glm,
    "granite": granite,
    "gemma2": gemma2,
    "vaultgemma": gemma2,
    "smollm3": smollm3,
    "helium": bias,
    "ernie4_5": scaling,
    "qwen3_moe": lambda *a: qwen3_moe(*a) | scaling(*a),
    "olmoe": lambda *a: experts(*a) | bias(*a) | scaling(*a),
    "mixtral": mixtral,
}


def draw_config(family, seed):
    random = np.random.default_rng([*family.encode(), seed])
    kv = int(random.integers(1, 4))
    heads = kv * int(random.integers(1, 4))
    head_dim = int(random.choice([10, 20]))
    sizes = dict(
        vocab_size=int(random.integers(50, 90)),
        hidden_size=heads
        * (head_dim if family in ("helium", "olmoe") else int(random.choice([6, 8]))),
        intermediate_size=int(random.integers(20, 50)),
        num_hidden_layers=2 if DRAWS == 1 else int(random.integers(2, 4)),
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=head_dim,
        tie_word_embeddings=bool(random.integers(2)),
        rms_norm_eps=float(random.choice([1e-5, 1e-6])),
        max_position_embeddings=64,
    )
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    found = DRAWN[family](random, sizes)
    config = transformers.AutoConfig.for_model(family, **sizes, **special, **found)
    config.eos_token_id = None  # GLM's class has some
    return config


@pytest.fixture(params=range(DRAWS))
def theirs(request, family):
    """A model of transformers in float32, whose every parameter is random."""
    seed = request.param
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        draw_config(family, seed),
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",  # the others know no float64
    ).eval()
    centre = 0 if "gemma" in family else 1  # Gemma's norms multiply by 1 + weight
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape)
            scale = 0.3 if p.ndim == 1 else p.shape[1] ** -0.5
            p.copy_(centre + 0.2 * noise if "norm" in name else noise * scale)
    return model


QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def ours_of(model, tokens):
    """Logits, log-probs and the gradients of their mean by every parameter."""
    graph, params = nnx.split(model)

    def score(params):
        logprobs = models.token_logprobs(nnx.merge(graph, params), tokens)
        return logprobs[:, 1:].mean(), logprobs

    @partial(jax.jit, compiler_options=QUICK)
    def computed(params):
        gradient, logprobs = jax.grad(score, has_aux=True)(params)
        model = nnx.merge(graph, params)
        return model.logits(model(tokens)), logprobs, gradient

    logits, logprobs, gradient = computed(params)
    return logits, logprobs, nnx.merge(graph, gradient)


def theirs_of(model, tokens):
    # Both in float32 are apart by more than either is from this.
    model = copy.deepcopy(model).double()
    logits = model(tokens).logits
    full = torch.log_softmax(logits[:, :-1], -1)
    logprobs = torch.gather(full, 2, tokens[:, 1:, None])[:, :, 0]
    logprobs.mean().backward()
    return logits.detach().numpy(), logprobs.detach().numpy(), stored_gradients(model)


def stored_gradients(model):
    """Gradients by the names of a checkpoint, where experts are apart."""
    found = {}
    for name, p in model.named_parameters():
        gradient = p.grad.numpy()
        layer, _, kind = name.partition(".experts.")
        if model.config.model_type == "mixtral":
            layer = layer.replace(".mlp", ".block_sparse_moe")
        if not kind:
            found[layer] = gradient
            continue
        matrices = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
        names = dict(zip(("gate_proj", "down_proj", "up_proj"), ("w1", "w2", "w3"), strict=True))
        for expert, both in enumerate(gradient):
            for matrix, value in zip(matrices, np.split(both, len(matrices)), strict=True):
                own = names[matrix] if model.config.model_type == "mixtral" else matrix
                found[f"{layer}.experts.{expert}.{own}.weight"] = value
    return found


def close(found, wanted, name=""):
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("family", DRAWN)
def test_a_model_of_every_family(theirs, tmp_path, monkeypatch):
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    ours = models.load(tmp_path / "theirs")
    vocab = ours.config.vocab_size
    tokens = np.random.default_rng(0).integers(0, vocab, (2, LENGTH))
    logits, logprobs, gradient = ours_of(ours, tokens)
    wanted = theirs_of(theirs, torch.tensor(tokens))
    close(logits, wanted[0], "logits")
    close(logprobs[:, 1:], wanted[1], "logprobs")
    stored = dict(streaming.stored_tensors(ours.config, models.parameters(gradient)))
    for name, value in wanted[2].items():
        close(stored.pop(name), value, name)
    assert not stored

    # A folder written here is the same model there.
    monkeypatch.setattr(export, "MAX_FILE_BYTES", 20_000)
    models.save(ours, tmp_path / "ours")
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours",
        output_loading_info=True,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    assert not any(info.values()), info
    assert type(again) is type(theirs)
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    with torch.no_grad():
        assert torch.equal(again(torch.tensor(tokens)).logits, theirs(torch.tensor(tokens)).logits)
    assert models.load_config(tmp_path / "ours") == ours.config


# A sampler's programs take long to compile.
@pytest.mark.parametrize("family", DRAWN if DRAWS > 1 else ["gemma2", "smollm3", "glm4"])
def test_greedy_continuations(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    ours = models.load(tmp_path)
    prompts = np.random.default_rng(1).integers(0, ours.config.vocab_size, (2, PROMPT))
    params = sampling.SamplingParams(max_new_tokens=NEW, temperature=0.0)
    drawn = sampling.sample(ours, prompts.tolist(), params, key=jax.random.key(0))
    tokens = np.concatenate([prompts, np.asarray(drawn.tokens[:, 0])], axis=1)
    with torch.no_grad():
        logits = theirs(torch.tensor(tokens)).logits[:, PROMPT - 1 : -1].numpy()
    # The best token of transformers, up to rounding where two are as good.
    chosen = np.take_along_axis(logits, tokens[:, PROMPT:, None], axis=2)[..., 0]
    np.testing.assert_allclose(chosen, logits.max(-1), atol=1e-4)


def test_every_family_is_drawn():
    drawn = {name.removesuffix("_text") for name in DRAWN}
    assert drawn == FAMILIES.keys()


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
