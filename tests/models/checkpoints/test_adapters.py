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

SHAPE = models.ModelConfig(
    vocab_size=29,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
)
CONFIG = LoraConfig(3, 5.0, ("q_proj", "v_proj", "down_proj"))


@pytest.fixture(scope="module")
def model():
    model = models.init(SHAPE, lora=CONFIG)
    random = np.random.default_rng(1)
    for name in lora.parameter_names(CONFIG):
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
    a, b = (
        tensors[f"base_model.model.model.layers.1.self_attn.v_proj.lora_{half}.weight"]
        for half in "AB"
    )
    np.testing.assert_array_equal(a, model.layers.v_lora_a[...][1].T)
    assert a.shape == (3, 16) and b.shape == (12, 3)
    assert tensors["base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"].shape == (3, 24)
    said = json.loads((written / "adapter_config.json").read_text())
    assert (said["peft_type"], said["task_type"], said["r"], said["lora_alpha"]) == (
        "LORA",
        "CAUSAL_LM",
        3,
        5,
    )
    assert (
        said["target_modules"] == ["q_proj", "v_proj", "down_proj"]
        and said["base_model_name_or_path"] == "/models/base"
    )


def test_it_is_read_back(model, written):
    assert load_adapter_config(written) == CONFIG
    again = models.init(SHAPE)
    models.add_adapter(again, written)
    assert models.fingerprint(again) == models.fingerprint(model)


def test_a_second_adapter_is_refused(written):
    twice = models.init(SHAPE)
    models.add_adapter(twice, written)
    before = models.fingerprint(twice)
    with pytest.raises(UsageError, match="has LoRA weights already"):
        models.add_adapter(twice, written)
    assert models.fingerprint(twice) == before


def test_tensors_that_are_not_finite(written):
    file = written / "adapter_model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight"
    tensors[name][0, 0] = np.nan
    safetensors.numpy.save_file(tensors, file)
    with pytest.raises(DataError, match=f"tensor {name} contains values that are not finite"):
        models.add_adapter(models.init(SHAPE), written)


TABLES = {
    "embed_tokens": ("embed", "base_model.model.model.embed_tokens.weight"),
    "lm_head": ("head", "base_model.model.lm_head.weight"),
}


def save_modules(folder, names, dtype=np.float32, shape=(29, 16)):
    """Adds whole modules to an adapter as PEFT does; returns their weights by parameter."""
    file, random = folder / "adapter_model.safetensors", np.random.default_rng(2)
    tensors, added = safetensors.numpy.load_file(file), {}
    for name in names:
        parameter, tensor = TABLES[name]
        tensors[tensor] = added[parameter] = random.normal(size=shape).astype(dtype)
    safetensors.numpy.save_file(tensors, file)
    change(folder, modules_to_save=list(names))
    return added


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("names", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
def test_an_embedding_and_a_head_that_were_trained_as_a_whole(written, tmp_path, names, tied):
    added = save_modules(written, names)
    base = models.init(dataclasses.replace(SHAPE, tie_embeddings=tied))
    wanted = {"embed": base.embed[...], "head": base.head_weight()} | added
    models.add_adapter(base, written)
    _, trained, frozen = training_state.split(base)
    assert all(map(lora.is_lora, trained["layers"])) and set(trained) == {"layers"}
    merged = models.load(models.save(base, tmp_path / "merged"))
    again = models.init(dataclasses.replace(SHAPE, tie_embeddings=tied))
    exported = models.save_adapter(base, tmp_path / "again", base="/models/base")
    models.add_adapter(again, exported)
    for found in (base, merged, again):
        assert not found.config.tie_embeddings and not found.layers.config.tie_embeddings
        for name, value in wanted.items():
            np.testing.assert_array_equal(getattr(found, name)[...], value)
    assert set(frozen) >= {"embed", "head"}
    assert models.fingerprint(again) == models.fingerprint(base)
    stored = json.loads((exported / "adapter_config.json").read_text())
    tensors = safetensors.numpy.load_file(exported / "adapter_model.safetensors")
    assert stored["modules_to_save"] == names
    assert {tensor for tensor in tensors if "lora" not in tensor} == {TABLES[n][1] for n in names}


def test_modules_that_do_not_fit(written):
    model = models.init(SHAPE)
    before = models.fingerprint(model)
    save_modules(written, ["lm_head"])
    for fields, message in (
        ({"modules_to_save": None}, r"got tensor base_model\.model\.lm_head\.weight"),
        ({"ensure_weight_tying": True}, "ensure_weight_tying"),
    ):
        change(written, modules_to_save=["lm_head"])
        change(written, **fields)
        with pytest.raises(DataError, match=message):
            models.add_adapter(model, written)
    change(written, modules_to_save=["lm_head"], ensure_weight_tying=False)
    save_modules(written, ["lm_head"], shape=(31, 16))
    with pytest.raises(DataError, match=r"lm_head\.weight: .*\(29, 16\).*\(31, 16\)"):
        models.add_adapter(model, written)
    assert models.fingerprint(model) == before and model.lora is None


def test_rank_stabilised_scaling_is_read(written):
    change(written, use_rslora=True)
    assert load_adapter_config(written).scale == pytest.approx(5 / 3**0.5)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, r"lm_head\.weight .*modules_to_save"),
        ({"modules_to_save": ["lm_head", "norm"]}, "modules_to_save.*norm"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights must be"),
        ({"target_modules": ["q_proj", "down_proj"]}, "target_modules = .* differ in .*v_proj"),
        (
            {"target_modules": r".*layers\.0\..*_proj"},
            r"target_modules = .* differ in .*layers\.1\.",
        ),
        (
            {"target_modules": ["q_proj", "v_proj", "down_proj", "up_proj"]},
            "target_modules = .* differ in up_proj",
        ),
        ({"target_modules": "("}, "target_modules: expected a regular expression"),
        ({"r": 4}, r"expected shape \(4, 16\) for this model, got \(3, 16\)"),
    ],
)
def test_options_that_the_model_does_not_have(written, fields, message):
    change(written, **fields)
    with pytest.raises(DataError, match=message):
        models.add_adapter(models.init(SHAPE), written)


@pytest.mark.parametrize(
    "edit, message",
    [
        (
            lambda t: t.pop("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"),
            r"layers\.1\.mlp\.down_proj\.lora_B\.weight: expected .* got none",
        ),
        (
            lambda t: t.update({"base_model.model.lm_head.lora_A.weight": np.zeros((3, 16))}),
            r"expected the A and B of projections, got tensor .*lm_head\.lora_A\.weight",
        ),
        (
            lambda t: t.update(
                {"base_model.model.model.layers.2.mlp.down_proj.lora_A.weight": np.zeros((3, 24))}
            ),
            "is unexpected, the model has 2 layers",
        ),
    ],
    ids=["missing", "of the head", "of another layer"],
)
def test_tensors_that_do_not_fit(written, edit, message):
    file = written / "adapter_model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    edit(tensors)
    safetensors.numpy.save_file(tensors, file)
    with pytest.raises(DataError, match=message):
        models.add_adapter(models.init(SHAPE), written)


def test_what_is_no_adapter(model, written, tmp_path):
    with pytest.raises(
        DataError, match=r"adapter_config\.json is missing: give the folder of a LoRA adapter"
    ):
        load_adapter_config(tmp_path)
    (written / "adapter_model.safetensors").write_bytes(b"short")
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        load_adapter_config(written)
    (written / "adapter_model.safetensors").unlink()
    with pytest.raises(DataError, match=r"adapter_model\.safetensors: cannot be read"):
        load_adapter_config(written)
    with pytest.raises(UsageError, match="exists and is not empty"):
        models.save_adapter(model, written, base="x")
    with pytest.raises(UsageError, match="no LoRA weights to write apart"):
        models.save_adapter(models.init(SHAPE), tmp_path / "none", base="x")
