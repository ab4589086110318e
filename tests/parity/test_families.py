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
from grre_jax.models.checkpoints import export
from grre_jax.models.checkpoints.families import FAMILIES

torch = pytest.importorskip("torch", reason="extra parity")
transformers = pytest.importorskip("transformers", reason="extra parity")
pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # torch's spinning threads and XLA's slow each other down on few cores

DRAWS = int(os.environ.get("GRRE_PARITY_DRAWS", "1"))
LENGTH = 40
PROMPT = 8
NEW = 32


FULL, SLIDING = "full_attention", "sliding_attention"


class Draw:
    """Fields of a random configuration."""

    def __init__(self, family, seed):
        self.random = np.random.default_rng([*family.encode(), seed])
        self.layers = 2 if DRAWS == 1 else self.one(2, 3)

    def one(self, *options):
        return options[self.random.integers(len(options))]

    def bias(self):
        return {"attention_bias": self.one(False, True)}

    def window(self):
        """A window or none, for all layers."""
        return {"sliding_window": self.one(None, 3, 11)}

    def listed(self):
        """A window and the kind of each layer, or those of a configuration without them."""
        kinds = [self.one(FULL, SLIDING) for _ in range(self.layers)]
        return {"sliding_window": self.one(3, 11)} | self.one({}, {"layer_types": kinds})

    def rope(self, *truncated):
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
        yarn |= {"beta_fast": self.one(32, 3), "truncate": self.one(*truncated)}
        llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
        llama3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        linear = {"rope_type": "linear", "factor": 3.0}
        return self.one({"rope_type": "default"}, linear, llama3, yarn)

    def scaling(self):
        return {"rope_parameters": self.rope(True, False) | {"rope_theta": self.one(1e2, 1e4)}}

    def layered(self):
        local = {"rope_type": "default", "rope_theta": self.one(10.0, 1e4)}
        both = {FULL: self.rope(True) | {"rope_theta": 100.0}, SLIDING: local}
        return self.listed() | {"rope_parameters": both}

    def partial(self):
        rope = {"rope_type": "default", "rope_theta": 100.0}
        return {"rope_parameters": rope, "partial_rotary_factor": self.one(0.4, 0.8, 1.0)}

    def caps(self):
        return {
            "attn_logit_softcapping": self.one(None, 0.5, 20.0),
            "final_logit_softcapping": self.one(None, 2.0),
            "query_pre_attn_scalar": self.one(7, 20),
        }

    def granite(self):
        names = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
        values = {name: self.one(0.3, 0.8, 1.7) for name in names}
        return values | {"attention_multiplier": self.one(0.1, 0.4)}

    def smollm3(self):
        rotated = {"no_rope_layers": [self.one(0, 1) for _ in range(self.layers)]}
        slides = {"use_sliding_window": True} | self.listed()
        return self.one(rotated, {"no_rope_layer_interval": 2}) | self.one({}, slides)

    def exaone4(self):
        whole = {"sliding_window": None, "layer_types": [FULL] * self.layers}
        return self.one(whole, {"sliding_window": 5, "sliding_window_pattern": 2}, self.listed())

    def qwen(self):
        slides = {"use_sliding_window": True}
        first = slides | {"sliding_window": 5, "max_window_layers": 1}
        return self.one({}, slides | self.listed(), first)

    def out_bias(self):
        bias = self.one(False, True)
        return {"attention_out_bias": bias, "residual_dropout": 0.0, "attention_dropout": 0.0}

    def experts(self):
        count = self.one(3, 6)
        chosen = {"num_experts_per_tok": self.one(1, 2)}
        return chosen | {"num_experts": count, "num_local_experts": count}

    def normalised(self):
        return {"norm_topk_prob": self.one(False, True)}

    def width(self):
        return {"moe_intermediate_size": self.one(22, 36)}


# By family: what is drawn.
DRAWN = {
    "llama": "bias scaling",
    "qwen2": "qwen scaling",
    "qwen3": "bias qwen scaling",
    "gemma3_text": "bias layered caps",
    "mistral": "window scaling",
    "ministral": "listed scaling",
    "seed_oss": "bias out_bias scaling",
    "gemma": "bias",
    "olmo2": "bias scaling",
    "olmo3": "bias layered",
    "exaone4": "exaone4",
    "phi3": "window partial",
    "glm": "bias partial",
    "glm4": "bias partial",
    "granite": "bias granite scaling",
    "gemma2": "bias listed caps",
    "vaultgemma": "bias listed caps",
    "smollm3": "bias smollm3",
    "helium": "bias",
    "ernie4_5": "scaling",
    "qwen3_moe": "bias experts normalised width scaling",
    "olmoe": "bias experts normalised scaling",
    "mixtral": "experts window",
}


def draw_config(family, seed):
    draw = Draw(family, seed)
    kv, group, head_dim = draw.one(1, 2, 3), draw.one(1, 2, 3), draw.one(10, 20)
    heads = kv * group
    square = family in ("helium", "olmoe")
    sizes = {
        "vocab_size": draw.one(50, 83),
        "hidden_size": heads * (head_dim if square else draw.one(6, 8)),
        "intermediate_size": draw.one(20, 34),
        "num_hidden_layers": draw.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "tie_word_embeddings": draw.one(False, True),
        "rms_norm_eps": draw.one(1e-5, 1e-6),
        "max_position_embeddings": 64,
    }
    for name in DRAWN[family].split():
        sizes |= getattr(draw, name)()
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.AutoConfig.for_model(family, **sizes, **special)
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


def theirs_of(model, tokens, folder):
    """The same; gradients in a model of the folder."""
    # Both in float32 are apart by more than either is from this.
    model = copy.deepcopy(model).double()
    logits = model(tokens).logits
    full = torch.log_softmax(logits[:, :-1], -1)
    logprobs = torch.gather(full, 2, tokens[:, 1:, None])[:, :, 0]
    logprobs.mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.grad)
    model.float().save_pretrained(folder)
    return logits.detach().numpy(), logprobs.detach().numpy(), models.load(folder)


def close(found, wanted, name=""):
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("family", DRAWN)
def test_a_model_of_every_family(theirs, tmp_path, monkeypatch):
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    ours = models.load(tmp_path / "theirs")
    vocab = ours.config.vocab_size
    tokens = np.random.default_rng(0).integers(0, vocab, (2, LENGTH))
    logits, logprobs, gradient = ours_of(ours, tokens)
    wanted = theirs_of(theirs, torch.tensor(tokens), tmp_path / "gradient")
    close(logits, wanted[0], "logits")
    close(logprobs[:, 1:], wanted[1], "logprobs")
    expected = models.parameters(wanted[2])
    for name, value in models.parameters(gradient).items():
        close(value, expected[name], name)

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
    assert {name.removesuffix("_text") for name in DRAWN} == FAMILIES.keys()


def test_the_text_model_of_gemma_3_with_images(tmp_path):
    text = {"vocab_size": 41, "hidden_size": 24, "intermediate_size": 26, "num_hidden_layers": 3}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10}
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "patch_size": 14}
    vision |= {"num_attention_heads": 1, "image_size": 28}
    config = transformers.Gemma3Config(
        text_config=text | {"sliding_window": 4},
        vision_config=vision,
        image_token_index=40,
        mm_tokens_per_image=4,
    )
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(config).float().eval()
    model.save_pretrained(tmp_path)
    tokens = np.random.default_rng(0).integers(0, 40, (2, 11))
    with torch.no_grad():
        wanted = model(torch.tensor(tokens)).logits.numpy()
    ours = models.load(tmp_path)
    np.testing.assert_allclose(ours.logits(ours(tokens)), wanted, atol=1e-4)
