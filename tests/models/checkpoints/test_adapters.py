"""Adapter folders: what is written is read back, and what this model cannot be is told."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

from grre_jax import models
from grre_jax.errors import DataError, UsageError
from grre_jax.models import lora
from grre_jax.models.checkpoints.adapters import load_adapter_config
from grre_jax.models.lora import LoraConfig
from grre_jax.training import state as training_state

from ..conftest import SHAPE, edit_tensors

CONFIG = LoraConfig(3, 5.0, ("q_proj", "v_proj", "down_proj"))


@pytest.fixture(scope="module")
def model():
    model = models.init(SHAPE, lora=CONFIG)
    random = np.random.default_rng(1)
    for name in lora.parameter_names(SHAPE, CONFIG):
        value = getattr(model.layers, name)
        value[...] = random.normal(size=value.shape).astype(np.float32)
    return model


@pytest.fixture
def written(model, tmp_path):
    return models.save_adapter(model, tmp_path / "adapter", base="/models/base")


def change(folder, **fields):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_names_and_shapes_are_pefts(model, written):
    tensors = safetensors.numpy.load_file(written / "adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * 3
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


def test_it_is_read_back_once(model, written):
    assert load_adapter_config(written) == CONFIG
    again = models.init(SHAPE)
    models.add_adapter(again, written)
    assert models.fingerprint(again) == models.fingerprint(model)
    with pytest.raises(UsageError, match="LoRA"):
        models.add_adapter(again, written)
    assert models.fingerprint(again) == models.fingerprint(model)


TABLES = {
    "embed_tokens": ("embed", "base_model.model.model.embed_tokens.weight"),
    "lm_head": ("head", "base_model.model.lm_head.weight"),
}


def save_modules(folder, names, shape=(29, 16)):
    """Adds whole modules to an adapter as PEFT does; returns their weights by parameter."""
    random = np.random.default_rng(2)
    tables = [TABLES[name] for name in names]
    added = {parameter: random.normal(size=shape).astype(np.float32) for parameter, _ in tables}
    tensors = {tensor: added[parameter] for parameter, tensor in tables}
    edit_tensors(folder / "adapter_model.safetensors", lambda stored: stored.update(tensors))
    change(folder, modules_to_save=list(names))
    return added


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("names", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
def test_an_embedding_and_a_head_that_were_trained_as_a_whole(written, tmp_path, names, tied):
    shape = dataclasses.replace(SHAPE, tie_embeddings=tied)
    base, again = models.init(shape), models.init(shape)
    expected = {"embed": base.embed[...], "head": base.head_weight()} | save_modules(written, names)
    models.add_adapter(base, written)
    _, trained, frozen = training_state.split(base)
    assert set(trained) == {"layers"} and all(map(lora.is_lora, trained["layers"]))
    assert set(frozen) >= {"embed", "head"}
    merged = models.load(models.save(base, tmp_path / "merged"))
    exported = models.save_adapter(base, tmp_path / "again", base="/models/base")
    models.add_adapter(again, exported)
    for found in (base, merged, again):
        assert not found.config.tie_embeddings and not found.layers.config.tie_embeddings
        for name, value in expected.items():
            np.testing.assert_array_equal(getattr(found, name)[...], value)
    assert models.fingerprint(again) == models.fingerprint(base)
    stored = json.loads((exported / "adapter_config.json").read_text())
    assert stored["modules_to_save"] == names
    tensors = safetensors.numpy.load_file(exported / "adapter_model.safetensors")
    assert {tensor for tensor in tensors if "lora" not in tensor} == {TABLES[n][1] for n in names}


def test_rank_stabilised_scaling_is_read(written):
    change(written, use_rslora=True)
    assert load_adapter_config(written).scale == pytest.approx(5 / 3**0.5)


LAYER = "base_model.model.model.layers"
DOWN = f"{LAYER}.1.mlp.down_proj.lora_B.weight"
HEAD = "base_model.model.lm_head"


def edit_adapter(folder, edit):
    edit_tensors(folder / "adapter_model.safetensors", edit)


def save_head(folder, shape=(29, 16), **fields):
    save_modules(folder, ["lm_head"], shape)
    change(folder, **fields)


@pytest.mark.parametrize(
    "damage, named",
    [
        (lambda f: change(f, rank_pattern={"q_proj": 0}), "rank_pattern"),
        (lambda f: change(f, modules_to_save=["lm_head"]), "modules_to_save"),
        (lambda f: change(f, modules_to_save=["lm_head", "norm"]), "modules_to_save.*norm"),
        (lambda f: change(f, target_modules=["q_proj", "down_proj"]), "target_modules.*v_proj"),
        (lambda f: change(f, target_modules=r".*layers\.0\..*_proj"), r"target_modules.*\.1\."),
        (lambda f: change(f, target_modules=[*CONFIG.targets, "up_proj"]), "up_proj"),
        (lambda f: change(f, target_modules="("), "target_modules"),
        (lambda f: change(f, r=4), r"\(4, 24\).*\(3, 24\)"),
        (lambda f: save_head(f, modules_to_save=None), f"{HEAD}.weight"),
        (lambda f: save_head(f, ensure_weight_tying=True), "ensure_weight_tying"),
        (lambda f: save_head(f, (31, 16)), r"lm_head\.weight.*\(29, 16\).*\(31, 16\)"),
        (lambda f: edit_adapter(f, lambda t: t.pop(DOWN)), DOWN),
        (lambda f: edit_adapter(f, lambda t: t.update({DOWN: t[DOWN] * np.float32("nan")})), DOWN),
        (lambda f: edit_adapter(f, lambda t: t.update({f"{HEAD}.lora_A.weight": t[DOWN]})), HEAD),
        (lambda f: edit_adapter(f, lambda t: t.update({DOWN.replace("1", "2"): t[DOWN]})), "2.mlp"),
    ],
)
def test_what_does_not_fit_is_named_and_leaves_the_model_as_it_is(written, damage, named):
    model = models.init(SHAPE)
    before = models.fingerprint(model)
    damage(written)
    with pytest.raises(DataError, match=named):
        models.add_adapter(model, written)
    assert models.fingerprint(model) == before and model.lora is None


def test_what_is_no_adapter(model, written, tmp_path):
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
        models.save_adapter(models.init(SHAPE), tmp_path / "none", base="x")
