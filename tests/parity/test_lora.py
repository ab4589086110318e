"""Live against PEFT: our adapter in its hands, and its adapter in ours."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from grre_jax import models
from grre_jax.models import lora
from grre_jax.models.lora import LoraConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # torch's spinning threads and XLA's slow each other down on few cores

SHAPE = models.ModelConfig(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
)
TOKENS = np.random.default_rng(0).integers(0, 61, (2, 11))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return models.save(models.init(SHAPE), tmp_path_factory.mktemp("base") / "model")


def theirs(base):
    return transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def torch_logits(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits.numpy()


def our_logits(model):
    return np.asarray(model.logits(model(TOKENS)))


@pytest.mark.parametrize(
    "targets", [lora.TARGETS, ("k_proj", "o_proj", "gate_proj")], ids=["all", "some"]
)
def test_peft_loads_our_adapter(base, tmp_path, targets):
    model = models.load(base)
    config, random = LoraConfig(4, 6.0, targets), np.random.default_rng(1)
    shapes = lora.initial(SHAPE, config, nnx.Rngs(0), np.float32)
    model.layers.add_lora(
        config,
        {
            name: random.normal(scale=0.2, size=x.shape).astype(np.float32)
            for name, x in shapes.items()
        },
    )
    loaded = peft.PeftModel.from_pretrained(
        theirs(base), models.save_adapter(model, tmp_path / "adapter", base=str(base))
    )
    found = torch_logits(loaded)
    np.testing.assert_allclose(our_logits(model), found, atol=1e-4)
    assert np.abs(found - torch_logits(theirs(base))).max() > 1e-2
    merged = models.save(model, tmp_path / "merged")
    np.testing.assert_allclose(torch_logits(theirs(merged)), found, atol=1e-4)


@pytest.mark.parametrize("stabilised", [False, True])
def test_we_load_pefts_adapter(base, tmp_path, stabilised):
    options = dict(
        r=3,
        lora_alpha=7,
        target_modules=["q_proj", "v_proj", "down_proj"],
        use_rslora=stabilised,
        task_type="CAUSAL_LM",
    )
    adapted = peft.get_peft_model(theirs(base), peft.LoraConfig(**options)).eval()
    random = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=random)
    adapted.save_pretrained(tmp_path / "adapter")
    model = models.load(base)
    models.add_adapter(model, tmp_path / "adapter")
    np.testing.assert_allclose(our_logits(model), torch_logits(adapted), atol=1e-4)
    # What it starts from: A as ours starts, B zero.
    fresh = (
        peft.get_peft_model(theirs(base), peft.LoraConfig(**options))
        .base_model.model.model.layers[0]
        .self_attn.q_proj
    )
    a, bound = fresh.lora_A["default"].weight.detach().numpy(), 24**-0.5
    assert 0.8 * bound < np.abs(a).max() <= bound and not fresh.lora_B["default"].weight.any()


@pytest.mark.parametrize("stabilised", [False, True])
def test_ranks_and_alphas_by_module(base, tmp_path, stabilised):
    options = dict(r=3, lora_alpha=7, target_modules=["q_proj", "v_proj"], use_rslora=stabilised)
    options |= {"rank_pattern": {"q_proj": 5, r"layers\.1\.self_attn\.v_proj": 2}}
    options |= {"alpha_pattern": {"v_proj": 11}, "task_type": "CAUSAL_LM"}
    adapted = peft.get_peft_model(theirs(base), peft.LoraConfig(**options)).eval()
    random = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=random)
    adapted.save_pretrained(tmp_path / "adapter")
    model = models.load(base)
    models.add_adapter(model, tmp_path / "adapter")
    wanted = torch_logits(adapted)
    assert model.lora.rank == 5
    np.testing.assert_allclose(our_logits(model), wanted, atol=1e-4)
    saved = models.save_adapter(model, tmp_path / "again", base=str(base))
    loaded = peft.PeftModel.from_pretrained(theirs(base), saved)
    np.testing.assert_allclose(torch_logits(loaded), wanted, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("names", "ensured"),
    [
        (["embed_tokens"], False),
        (["lm_head"], False),
        (["embed_tokens", "lm_head"], False),
        (["embed_tokens"], True),
    ],
)
def test_modules_to_save(tmp_path, tied, names, ensured):
    shape = dataclasses.replace(SHAPE, tie_embeddings=tied)
    base = models.save(models.init(shape), tmp_path / "model")
    options = dict(r=3, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    options |= {"modules_to_save": names, "ensure_weight_tying": ensured}
    adapted = peft.get_peft_model(theirs(base), peft.LoraConfig(**options)).eval()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (p for p in adapted.parameters() if p.requires_grad):
            parameter += 0.2 * torch.randn(parameter.shape, generator=random)
    adapted.save_pretrained(tmp_path / "adapter")
    model = models.load(base)
    models.add_adapter(model, tmp_path / "adapter")
    wanted = torch_logits(adapted)
    np.testing.assert_allclose(our_logits(model), wanted, atol=1e-4)
    saved = models.save_adapter(model, tmp_path / "again", base=str(base))
    loaded = peft.PeftModel.from_pretrained(theirs(base), saved)
    np.testing.assert_allclose(torch_logits(loaded), wanted, atol=1e-4)
    merged = models.save(model, tmp_path / "merged")
    np.testing.assert_allclose(torch_logits(theirs(merged)), wanted, atol=1e-4)


def test_dora_is_refused(base, tmp_path):
    from grre_jax.errors import DataError

    options = dict(r=3, target_modules=["q_proj"], use_dora=True, task_type="CAUSAL_LM")
    peft.get_peft_model(theirs(base), peft.LoraConfig(**options)).save_pretrained(
        tmp_path / "adapter"
    )
    with pytest.raises(DataError, match="use_dora must be false or null, got True"):
        models.add_adapter(models.load(base), tmp_path / "adapter")


def test_lora_ga_is_refused(base, tmp_path):
    """As pissa, it takes its initial values out of the base."""
    import json

    from grre_jax.errors import DataError

    folder = models.save_adapter(
        models.init(SHAPE, lora=LoraConfig(2, 3.0, ("q_proj",))),
        tmp_path / "adapter",
        base=str(base),
    )
    values = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(
        json.dumps(values | {"init_lora_weights": "lora_ga"})
    )
    with pytest.raises(DataError, match="init_lora_weights must be .*, got 'lora_ga'"):
        models.add_adapter(models.load(base), folder)
