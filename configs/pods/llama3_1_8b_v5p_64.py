"""Llama-3.1-8B-Instruct learns GSM8K by GRPO on 64 v5p chips.

Shows settings under which a global batch of 768 rows fits a v5p:4x4x4 and keeps its matrix units
busy. With 95 GiB a chip the backward pass keeps every large product and computes only the cheap
rest again.

Commands:
    grre compile configs/pods/llama3_1_8b_v5p_64.py --topology v5p:4x4x4
    grre train configs/pods/llama3_1_8b_v5p_64.py
Needs:
    The checkpoint in models/llama-3.1-8b.
Hardware:
    TPU v5p:4x4x4.
Compiled by grre compile (jax 0.10.2, libtpu 0.0.42), not run:
    The train step fits, 53.8 of 94.75 GiB a chip. The 1,920 prompts x 8 of 20 steps are sampled in
    one call of 240 rows a chip, 48 GiB without optimizer state.
"""

from pod_setting import setting

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return setting(
        "llama3_1_8b_v5p_64",
        c.ModelSource(
            "models/llama-3.1-8b",
            shape="configs/shapes/llama-3.1-8b",
            compute_dtype="bfloat16",
            remat="projections",
        ),
        c.MeshConfig(data=1, fsdp=64),
    )
