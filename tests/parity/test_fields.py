"""Live against transformers: whatever a field of config.json holds, a folder that loads here has
the logits that it has there.
"""

import collections
import dataclasses
import json
import os

import numpy as np
import pytest
from flax import nnx

from grre_jax import models
from grre_jax.errors import DataError
from grre_jax.models.checkpoints import config_fields
from grre_jax.models.checkpoints.families import FAMILIES, model_type

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # torch's spinning threads and XLA's slow each other down on few cores

# Every family takes a minute: those beside these four as in test_families.
DRAWS = int(os.environ.get("GRRE_PARITY_DRAWS", "1"))
TESTED = FAMILIES if DRAWS > 1 else ["llama", "qwen2", "qwen3", "gemma3"]
VALUES = [None, True, 2, 0.5, "x", [1], {"0": "a"}]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "factor": 3.0}
LAYERED = {"full_attention": LINEAR | {"rope_theta": 60.0}}
LAYERED |= {"sliding_attention": {"rope_type": "default"}}
# Values that mean something, beside those of every type.
TOLD = [
    {"rope_scaling": LLAMA3},
    {"rope_parameters": LLAMA3},
    {"rope_parameters": LINEAR | {"rope_theta": 50.0}},
    {"rope_parameters": LAYERED},
    {"rope_scaling": {"type": "linear", "factor": 3.0}},
    {"rope_scaling": LINEAR, "rope_parameters": LLAMA3},
    {"rope_theta": 70.0, "rope_scaling": LINEAR},
    {"rope_local_base_freq": 80.0},
    {"hidden_act": "swish"},
    {"layer_types": ["sliding_attention", "full_attention"]},
    {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    {"sliding_window": 3},
    {"sliding_window_pattern": 2},
    {"query_pre_attn_scalar": 7},
    {"final_logit_softcapping": 0.5},
    {"rms_norm_eps": 0.5},
    {"tie_word_embeddings": True},
]
TOKENS = np.random.default_rng(0).integers(0, 50, (2, 40))


@pytest.fixture(params=TESTED)
def folder(request, tmp_path):
    """A checkpoint of transformers whose every parameter is random; heads and key-value heads
    are as many.
    """
    config = transformers.AutoConfig.for_model(
        model_type(request.param),
        vocab_size=50,
        hidden_size=32,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        tie_word_embeddings=False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    )
    torch.manual_seed(0)
    config.eos_token_id = None  # GLM's class has some
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.4 * torch.randn(p.shape))
    model.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    # What transformers 5 writes out would hide the same fields in the layout of transformers 4.
    for name in ("rope_parameters", "layer_types", "sliding_window", "_sliding_window_pattern"):
        values.pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(values))
    return tmp_path


def their_logits(folder):
    """transformers' logits, or None where it refuses the folder."""
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            return model(torch.tensor(TOKENS))[0].numpy()
    except Exception:
        return None


@nnx.jit
def our_logits(model):
    return model.logits(model(TOKENS))


def test_every_field(folder):
    values = json.loads((folder / "config.json").read_text())
    family = models.load_config(folder).family
    fields = dataclasses.fields(transformers.AutoConfig.for_model(model_type(family)))
    names = {field.name for field in fields} | {*config_fields.LAYERED, *config_fields.UNDECLARED}
    names |= {*FAMILIES[family].fields, *config_fields.HARMLESS}
    base, computed = models.load_config(folder), {}
    compared, differing, harmless = 0, 0, collections.Counter()
    for change in [{}, *TOLD, *({name: value} for name in sorted(names) for value in VALUES)]:
        (folder / "config.json").write_text(json.dumps(values | change))
        try:
            config = models.load_config(folder)
            if config not in computed:
                computed[config] = np.asarray(our_logits(models.load(folder)))
        except DataError:
            continue
        field = next(iter(change), "")
        if config == base and harmless[field] >= 2:
            continue  # two values that transformers takes, of each field that changes nothing
        theirs = their_logits(folder)
        if theirs is None:
            continue
        harmless[field] += 1
        np.testing.assert_allclose(computed[config], theirs, atol=1e-3, rtol=0, err_msg=str(change))
        compared += 1
        differing += np.abs(computed[config] - computed[base]).max() > 1e-2
    assert compared > 100 and differing > 3
