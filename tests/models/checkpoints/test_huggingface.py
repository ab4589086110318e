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


def edit_json(path, **changes):
    """Sets fields of a JSON file; None removes one."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def refused(folder, message):
    with pytest.raises(DataError, match=message) as raised:
        models.load(folder)
    assert str(folder) in str(raised.value)


def test_logits_are_those_of_transformers(case, check_logits):
    model, _ = check_logits(case)
    assert model.config == models.load_config(case)
    assert model.config.num_parameters == sum(p.size for p in models.parameters(model).values())


@pytest.mark.parametrize(
    "prefix",
    [
        "language_model.model.",
        pytest.param("model.language_model.", marks=pytest.mark.slow),
    ],
)
def test_the_text_model_of_a_model_of_text_and_images(checkpoint, check_logits, caplog, prefix):
    folder = checkpoint("gemma3")
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

    edit_tensors(folder / "model.safetensors", change)
    model, _ = check_logits(folder)
    assert [record.args for record in caplog.records] == [(folder,)]
    assert model.config.eos_ids == (3, 4) and model.config.family == "gemma3"
    exported = models.save(model, folder.parent / "exported")
    assert models.fingerprint(models.load(exported)) == models.fingerprint(model)
    assert json.loads((exported / "config.json").read_text())["model_type"] == "gemma3_text"


def test_half_precision_files(checkpoint, check_logits):
    folder = checkpoint()
    edit_tensors(
        folder / "model.safetensors",
        lambda tensors: tensors.update(
            {n: t.astype(ml_dtypes.bfloat16) for n, t in tensors.items()}
        ),
    )
    check_logits(folder, atol=0.1)


def test_half_precision_activations():
    model = models.load(STORED / "qwen2", compute_dtype=jnp.bfloat16)
    assert {p.dtype for p in models.parameters(model).values()} == {jnp.dtype("float32")}
    assert nnx.eval_shape(lambda m: m(np.zeros((1, 3), int)), model).dtype == jnp.bfloat16


def test_a_tied_checkpoint_may_store_its_head_and_old_buffers(checkpoint, check_logits):
    folder = checkpoint("qwen2")

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)

    edit_tensors(folder / "model.safetensors", add)
    check_logits(folder)

    def change_last(tensors):
        tensors["lm_head.weight"][-1, -1] += 1

    edit_tensors(folder / "model.safetensors", change_last)
    refused(folder, "lm_head.weight")


# By field and value: every field at values of every type is in test_fields.
@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(architectures=["MistralForCausalLM"]), "MistralForCausalLM"),
        (dict(layer_types=["full_attention", "sliding_attention"]), "sliding_window"),
        (dict(rms_norm_epsilon=0.1), "rms_norm_epsilon: .*'rms_norm_eps'"),
        (dict(num_key_value_heads=4), "num_key_value_heads"),
    ],
)
def test_unsupported_configurations_are_named(checkpoint, changes, named):
    folder = checkpoint()
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", **changes)
    refused(folder, f"config.json.*{named}")


def test_what_is_not_a_checkpoint(checkpoint, tmp_path):
    refused(tmp_path / "nowhere", "nowhere")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "config.json")
    folder = checkpoint()
    refused(folder / "model.safetensors", "model.safetensors")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "model.safetensors")
    (folder / "config.json").write_text("[]")
    refused(folder, "config.json")


UP, BIAS = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    "family, tensor, change",
    [
        ("qwen2", UP, lambda tensors: tensors.update({UP: tensors[UP][1:]})),
        ("qwen2", UP, lambda tensors: tensors.pop(UP)),
        ("llama", BIAS, lambda tensors: tensors.update({BIAS: np.zeros(24, np.float32)})),
    ],
)
def test_tensors_that_do_not_fit_the_configuration(checkpoint, family, tensor, change):
    folder = checkpoint(family)
    edit_tensors(folder / "model.safetensors", change)
    refused(folder, tensor)


def test_fingerprint_sees_every_number(small):
    model = small()
    before = models.fingerprint(model)
    assert len(before) == 64
    model.layers.q_norm = None  # not a parameter
    assert models.fingerprint(model) == before
    model.final_norm[...] = model.final_norm[...].at[3].add(1e-6)
    assert models.fingerprint(model) != before
    assert models.fingerprint(small(rope_theta=9_999.0)) != before
    assert models.fingerprint(small(family="qwen2", eos_ids=(1,))) == before
    assert models.fingerprint(small(dtype=jnp.bfloat16)) != before
