"""Live against PEFT: our adapter in its hands, and its adapter in ours."""

import numpy as np
import pytest

from grre_jax import models
from grre_jax.models import lora

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


def theirs(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits.numpy()


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": list(lora.TARGETS)},
        {"target_modules": ["k_proj", "o_proj", "gate_proj"], "use_rslora": True, "lora_alpha": 7},
    ],
)
def test_an_adapter_is_the_same_here_and_in_peft(tmp_path, options):
    """PEFT's is read; ours, and the model that it is merged with, is read there."""
    base = models.save(models.init(SHAPE), tmp_path / "base")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=3, **options)
    adapted = peft.get_peft_model(theirs(base), config).eval()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (p for p in adapted.parameters() if p.requires_grad):
            parameter += 0.2 * torch.randn(parameter.shape, generator=random)
    adapted.save_pretrained(tmp_path / "theirs")
    wanted = logits(adapted)
    assert np.abs(wanted - logits(theirs(base))).max() > 1e-2
    model = models.load(base)
    models.add_adapter(model, tmp_path / "theirs")
    np.testing.assert_allclose(model.logits(model(TOKENS)), wanted, atol=1e-4)
    saved = models.save_adapter(model, tmp_path / "ours", base=str(base))
    loaded = peft.PeftModel.from_pretrained(theirs(base), saved)
    np.testing.assert_allclose(logits(loaded), wanted, atol=1e-4)
    merged = models.save(model, tmp_path / "merged")
    np.testing.assert_allclose(logits(theirs(merged)), wanted, atol=1e-4)
