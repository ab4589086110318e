"""Adapter folders: what is written is read back, and what this model cannot be is told."""

import json

import numpy as np
import pytest
import safetensors.numpy

from grre_jax import models
from grre_jax.errors import DataError, UsageError
from grre_jax.models.checkpoints.adapters import load_adapter_config
from grre_jax.models.lora import LoraConfig

from ..conftest import edit_tensors

CONFIG = LoraConfig(3, 5.0, ("q_proj", "v_proj", "down_proj"))


@pytest.fixture(scope="module")
def model(small):
    return small(lora=CONFIG)


@pytest.fixture
def written(model, tmp_path):
    return models.save_adapter(model, tmp_path / "adapter", base="/models/base")


def change(folder, **fields):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_names_and_shapes_are_pefts(model, written):
    tensors = safetensors.numpy.load_file(written / "adapter_model.safetensors")
    layer = "base_model.model.model.layers.1"
    a = tensors[f"{layer}.self_attn.v_proj.lora_A.weight"]
    np.testing.assert_array_equal(a, model.layers.v_lora_a[...][1].T)
    assert a.shape == (3, 16)
    assert tensors[f"{layer}.self_attn.v_proj.lora_B.weight"].shape == (12, 3)
    assert tensors[f"{layer}.mlp.down_proj.lora_A.weight"].shape == (3, 24)
    expected = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 3,
        "lora_alpha": 5,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "base_model_name_or_path": "/models/base",
    }
    stored = json.loads((written / "adapter_config.json").read_text())
    assert stored.items() >= expected.items()


def test_it_is_read_back_once(small, model, written):
    again = small()
    models.add_adapter(again, written)
    assert models.fingerprint(again) == models.fingerprint(model)
    with pytest.raises(UsageError, match="LoRA"):
        models.add_adapter(again, written)


def test_rank_stabilised_scaling_is_read(written):
    change(written, use_rslora=True)
    assert load_adapter_config(written).scale == pytest.approx(5 / 3**0.5)


LAYER = "base_model.model.model.layers"
DOWN = f"{LAYER}.1.mlp.down_proj.lora_B.weight"
HEAD = "base_model.model.lm_head"


def edit_adapter(folder, edit):
    edit_tensors(folder / "adapter_model.safetensors", edit)


@pytest.mark.parametrize(
    "damage, named",
    [
        (lambda f: change(f, r=4), r"\(4, 24\).*\(3, 24\)"),
        (lambda f: edit_adapter(f, lambda t: t.pop(DOWN)), DOWN),
        (lambda f: edit_adapter(f, lambda t: t.update({DOWN: t[DOWN] * np.float32("nan")})), DOWN),
        (lambda f: edit_adapter(f, lambda t: t.update({f"{HEAD}.lora_A.weight": t[DOWN]})), HEAD),
    ],
)
def test_what_does_not_fit_is_named_and_leaves_the_model_as_it_is(small, written, damage, named):
    model = small()
    before = models.fingerprint(model)
    damage(written)
    with pytest.raises(DataError, match=named):
        models.add_adapter(model, written)
    assert models.fingerprint(model) == before and model.lora is None


def test_what_is_no_adapter(small, model, written, tmp_path):
    weights = written / "adapter_model.safetensors"
    for folder, breaks, named in (
        (tmp_path, lambda: None, "adapter_config.json"),
        (written, lambda: weights.write_bytes(b"short"), "safetensors"),
        (written, weights.unlink, "adapter_model.safetensors"),
    ):
        breaks()
        with pytest.raises(DataError, match=named):
            load_adapter_config(folder)
    with pytest.raises(UsageError, match=str(written)):
        models.save_adapter(model, written, base="x")
    with pytest.raises(UsageError, match="LoRA"):
        models.save_adapter(small(), tmp_path / "none", base="x")
