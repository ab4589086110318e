"""Live against PEFT: our adapter in its hands, and its adapter in ours."""

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


def adapted_by_peft(base, folder, **options):
    """A model of PEFT's whose trained numbers are random, and its adapter in the folder."""
    options |= {"task_type": "CAUSAL_LM", "r": 3}
    adapted = peft.get_peft_model(theirs(base), peft.LoraConfig(**options)).eval()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (p for p in adapted.parameters() if p.requires_grad):
            parameter += 0.2 * torch.randn(parameter.shape, generator=random)
    adapted.save_pretrained(folder)
    return torch_logits(adapted)


def check_read_and_written(base, wanted, tmp_path):
    """The adapter in tmp_path is read, written for PEFT, and merged."""
    model = models.load(base)
    models.add_adapter(model, tmp_path / "adapter")
    np.testing.assert_allclose(our_logits(model), wanted, atol=1e-4)
    saved = models.save_adapter(model, tmp_path / "again", base=str(base))
    loaded = peft.PeftModel.from_pretrained(theirs(base), saved)
    np.testing.assert_allclose(torch_logits(loaded), wanted, atol=1e-4)
    merged = models.save(model, tmp_path / "merged")
    np.testing.assert_allclose(torch_logits(theirs(merged)), wanted, atol=1e-4)
    return model


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


def test_rank_stabilised_scaling(base, tmp_path):
    options = {"target_modules": ["q_proj", "v_proj"], "use_rslora": True, "lora_alpha": 7}
    wanted = adapted_by_peft(base, tmp_path / "adapter", **options)
    assert check_read_and_written(base, wanted, tmp_path).lora.rank == 3
