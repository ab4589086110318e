"""Writes tests/models/fixtures: tiny random checkpoints as transformers saves them, with the
logits transformers computes for them.

    pip install -e '.[parity]' && python scripts/make_model_fixtures.py

Each folder holds config.json and model.safetensors from `save_pretrained`, and expected.npz with
`tokens` [rows, length] and float32 `logits` [rows, length, vocab]. The tests read them without
torch.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).parent.parent / "tests" / "models" / "fixtures"
ROWS, LENGTH = 2, 11
SMALL = dict(num_hidden_layers=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=3)
CASES = {
    # Grouped queries, an untied head.
    "llama": transformers.LlamaConfig(
        vocab_size=67,
        hidden_size=24,
        intermediate_size=36,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        **SMALL,
    ),
    # One key head for all, heads wider than hidden_size / heads, biases everywhere, a large rotary
    # base, a tied head.
    "llama_bias": transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=21,
        intermediate_size=28,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=10,
        attention_bias=True,
        rope_theta=500_000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        **SMALL,
    ),
    "qwen2": transformers.Qwen2Config(
        vocab_size=51,
        hidden_size=36,
        intermediate_size=30,
        num_attention_heads=6,
        num_key_value_heads=2,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        **SMALL,
    ),
    "qwen2_untied": transformers.Qwen2Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=False,
        **SMALL,
    ),
    "qwen3": transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=20,
        intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=14,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        **SMALL,
    ),
    "qwen3_bias": transformers.Qwen3Config(
        vocab_size=33,
        hidden_size=18,
        intermediate_size=20,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=6,
        attention_bias=True,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        **SMALL,
    ),
    # Llama 3's scaling, with lengths at which some frequencies are kept, some stretched and some in
    # between.
    "llama_scaled": transformers.LlamaConfig(
        vocab_size=45,
        hidden_size=24,
        intermediate_size=20,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=24,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 100.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        tie_word_embeddings=True,
        **SMALL,
    ),
    # The second layer slides; a linear scaling holds in both.
    "qwen2_sliding": transformers.Qwen2Config(
        vocab_size=39,
        hidden_size=30,
        intermediate_size=22,
        num_attention_heads=5,
        num_key_value_heads=1,
        rope_parameters={"rope_type": "linear", "rope_theta": 1_000.0, "factor": 2.5},
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
        tie_word_embeddings=False,
        **SMALL,
    ),
    "gemma3": transformers.Gemma3TextConfig(
        vocab_size=58,
        hidden_size=24,
        intermediate_size=26,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=10,
        query_pre_attn_scalar=7,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        final_logit_softcapping=3.0,
        pad_token_id=0,
        **SMALL,
    ),
    # YaRN, with pairs that are kept, interpolated and divided; cosines are scaled.
    "qwen2_yarn": transformers.Qwen2Config(
        vocab_size=37,
        hidden_size=32,
        intermediate_size=22,
        num_attention_heads=2,
        num_key_value_heads=1,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 8.0,
            "beta_slow": 1.5,
            "truncate": False,
        },
        tie_word_embeddings=True,
        **SMALL,
    ),
}


def randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Draws every parameter, norms and biases too, so that none can be left out unnoticed;
    logits come out around 1.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            centre = (
                0 if model.config.model_type == "gemma3_text" else 1
            )  # its norms multiply by 1 + weight
            parameter.copy_(
                centre + 0.2 * noise
                if "norm" in name
                else noise * (0.3 if parameter.ndim == 1 else parameter.shape[1] ** -0.5)
            )


def main() -> None:
    generator = torch.Generator().manual_seed(2509_24203)
    for name, config in CASES.items():
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        randomise(model, generator)
        tokens = torch.randint(config.vocab_size, (ROWS, LENGTH), generator=generator)
        with torch.no_grad():
            logits = model(tokens).logits
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        np.savez_compressed(
            folder / "expected.npz", tokens=tokens.numpy().astype(np.int32), logits=logits.numpy()
        )
        print(
            f"{folder}: {sum(p.numel() for p in model.parameters()):,} parameters, logits up to"
            f" {logits.abs().max():.2f}"
        )


if __name__ == "__main__":
    main()
