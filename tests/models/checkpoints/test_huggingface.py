"""Loading Hugging Face folders: the logits are transformers', and what cannot be loaded is
refused by name.
"""

import json

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from grre_jax import models
from grre_jax.errors import DataError

from ..conftest import STORED, edit_tensors

WEIGHTS = "model.safetensors"
NAMES = sorted(folder.name for folder in STORED.iterdir())
# In the fast suite; the parity tests have every family live.
QUICK = ("gemma3", "llama", "qwen2_yarn", "qwen3_bias")


def refused(folder, message):
    with pytest.raises(DataError, match=message) as raised:
        models.load(folder)
    assert str(folder) in str(raised.value)


@nnx.jit
def logits(model, tokens):
    return model.logits(model(tokens))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES],
)
def test_logits_are_those_of_transformers(name):
    case = STORED / name
    model = models.load(case)
    with np.load(case / "expected.npz") as stored:
        found = logits(model, stored["tokens"])
        np.testing.assert_allclose(found, stored["logits"], atol=1e-4, rtol=0)
    assert model.config == models.load_config(case)
    assert model.config.num_parameters == sum(p.size for p in models.parameters(model).values())


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_of_a_model_of_text_and_images(checkpoint, caplog, prefix):
    folder = checkpoint("gemma3")
    expected = models.fingerprint(models.load(folder))
    config = folder / "config.json"
    text = json.loads(config.read_text()) | {"architectures": None, "eos_token_id": None}
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {"hidden_size": 8},
        "eos_token_id": [3, 4],
        "image_token_index": 57,
        "mm_tokens_per_image": 4,
    }
    config.write_text(json.dumps(whole))
    (folder / "generation_config.json").unlink()
    vision = "vision_tower.x" if prefix.startswith("language") else "model.vision_tower.x"

    def change(tensors):
        for name in list(tensors):
            tensors[prefix + name.removeprefix("model.")] = tensors.pop(name)
        tensors |= dict.fromkeys((vision, "multi_modal_projector.x"), np.ones(3, np.float32))

    edit_tensors(folder / WEIGHTS, change)
    model = models.load(folder)
    assert models.fingerprint(model) == expected
    assert [record.args for record in caplog.records] == [(folder,)]
    assert model.config.eos_ids == (3, 4) and model.config.family == "gemma3"


def test_half_precision_files_and_activations(checkpoint):
    folder = checkpoint()
    wide = models.load(folder).embed[...]

    def halve(tensors):
        tensors |= {name: x.astype(ml_dtypes.bfloat16) for name, x in tensors.items()}

    edit_tensors(folder / WEIGHTS, halve)
    model = models.load(folder, compute_dtype=jnp.bfloat16)
    expected = wide.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(model.embed[...], expected, strict=True)
    assert nnx.eval_shape(lambda m: m(np.zeros((1, 3), int)), model).dtype == jnp.bfloat16


def test_a_tied_checkpoint_may_store_its_head_and_old_buffers(checkpoint):
    folder = checkpoint("qwen2")
    expected = models.fingerprint(models.load(folder))

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)

    edit_tensors(folder / WEIGHTS, add)
    assert models.fingerprint(models.load(folder)) == expected

    def change_last(tensors):
        tensors["lm_head.weight"][-1, -1] += 1

    edit_tensors(folder / WEIGHTS, change_last)
    refused(folder, "lm_head.weight")


# By field and value: every field at values of every type is in test_fields.
@pytest.mark.parametrize(
    "changes, named",
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"rms_norm_epsilon": 0.1}, "rms_norm_epsilon: .*'rms_norm_eps'"),
    ],
)
def test_unsupported_configurations_are_named(checkpoint, changes, named):
    config = checkpoint() / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    refused(config.parent, f"config.json.*{named}")


def test_what_is_not_a_checkpoint(checkpoint, tmp_path):
    refused(tmp_path / "nowhere", "nowhere")
    folder = checkpoint()
    refused(folder / WEIGHTS, WEIGHTS)
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    refused(folder, WEIGHTS)
    (folder / "config.json").unlink()
    refused(folder, "config.json")


def test_fingerprint_sees_every_number(small):
    model = small()
    before = models.fingerprint(model)
    model.final_norm[...] = model.final_norm[...].at[3].add(1e-6)
    assert models.fingerprint(model) != before
    assert models.fingerprint(small(rope_theta=9_999.0)) != before
    assert models.fingerprint(small(family="qwen2", eos_ids=(1,))) == before
    assert models.fingerprint(small(dtype=jnp.bfloat16)) != before
