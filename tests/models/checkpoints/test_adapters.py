"""Adapter folders: what is written is read back, and what this model cannot be is told."""

import json

import numpy as np
import pytest
import safetensors.numpy

from grre_jax import models
from grre_jax.errors import DataError, UsageError
from grre_jax.models.checkpoints import adapters
from grre_jax.models.checkpoints.adapters import load_adapter_config
from grre_jax.models.lora import LoraConfig

from ..conftest import edit_tensors
from .test_fields import walk

CONFIG = LoraConfig(3, 5.0, ("q_proj", "v_proj", "down_proj"))
LAYER = "base_model.model.model.layers.1"
DOWN = f"{LAYER}.mlp.down_proj.lora_B.weight"
HEAD = "base_model.model.lm_head.lora_A.weight"


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
    tensors = safetensors.numpy.load_file(written / adapters.WEIGHTS_FILE)
    a = tensors[f"{LAYER}.self_attn.v_proj.lora_A.weight"]
    np.testing.assert_array_equal(a, model.layers.v_lora_a[...][1].T)
    assert a.shape == (3, 16) and tensors[DOWN].shape == (16, 3)
    expected = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 3,
        "lora_alpha": 5,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "base_model_name_or_path": "/models/base",
    }
    assert json.loads((written / "adapter_config.json").read_text()) == expected


def test_it_is_read_back_once_and_never_overwritten(small, model, written):
    again = small()
    models.add_adapter(again, written)
    assert models.fingerprint(again) == models.fingerprint(model)
    with pytest.raises(UsageError, match="LoRA"):
        models.add_adapter(again, written)
    with pytest.raises(UsageError, match=str(written)):
        models.save_adapter(model, written, base="x")
    change(written, use_rslora=True)
    assert load_adapter_config(written).scale == pytest.approx(5 / 3**0.5)


def test_each_field_is_read_harmless_or_refused(written):
    fields = {*adapters.FIELDS, *adapters.UNSUPPORTED}
    stored = (written / "adapter_config.json").read_text()

    def read(fields):
        (written / "adapter_config.json").write_text(stored)
        change(written, **fields)
        return load_adapter_config(written)

    found, refused = walk(fields, read, "adapter_config.json")
    same = found.keys() - {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}
    assert all(config == CONFIG for name in same for config in found[name])
    assert refused == fields - {*adapters.HARMLESS}


@pytest.mark.parametrize(
    "edit, named",
    [
        (lambda tensors: tensors.pop(DOWN), DOWN),
        (lambda tensors: tensors.update({DOWN: tensors[DOWN] * np.float32("nan")}), DOWN),
        (lambda tensors: tensors.update({HEAD: tensors[DOWN]}), HEAD),
    ],
)
def test_what_does_not_fit_is_named_and_leaves_the_model_as_it_is(small, written, edit, named):
    model = small()
    before = models.fingerprint(model)
    edit_tensors(written / adapters.WEIGHTS_FILE, edit)
    with pytest.raises(DataError, match=named):
        models.add_adapter(model, written)
    assert models.fingerprint(model) == before and model.lora is None


def test_what_is_no_adapter(written, tmp_path):
    weights = written / adapters.WEIGHTS_FILE
    with pytest.raises(DataError, match="adapter_config.json"):
        load_adapter_config(tmp_path)
    weights.write_bytes(b"short")
    with pytest.raises(DataError, match="safetensors"):
        load_adapter_config(written)


def test_a_model_with_an_adapter_in_its_folder_is_refused(checkpoint, written):
    """transformers would add the adapter to the model, or to the base that it names."""
    folder = checkpoint("llama")
    for file in written.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for path in (folder, written):
        with pytest.raises(DataError, match=f"{path}.*adapter_config.json"):
            models.load_config(path)
