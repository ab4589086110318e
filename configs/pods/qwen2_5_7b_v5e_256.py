"""Qwen2.5-7B-Instruct learns GSM8K by GRPO on 256 v5e chips.

Shows settings under which a global batch of 768 rows fits a v5e:16x16 and keeps its matrix units
busy. Two chips share a row's heads and hidden units (tensor 2): without (mesh 8 x 32) the sampler,
which holds the weights whole in bfloat16, needs 15.8 GiB of 15.75.

Commands:
    grre compile configs/pods/qwen2_5_7b_v5e_256.py --topology v5e:16x16
    grre train configs/pods/qwen2_5_7b_v5e_256.py
Needs:
    The checkpoint in models/qwen2.5-7b.
Hardware:
    TPU v5e:16x16.
Compiled by grre compile (jax 0.10.2, libtpu 0.0.42), not run:
    The train step fits, 8.4 of 15.75 GiB a chip. The 1,920 prompts x 8 of 20 steps are sampled in
    one call of 120 rows a chip pair, 14.2 GiB without optimizer state.
"""

from pod_setting import setting

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return setting(
        "qwen2_5_7b_v5e_256",
        c.ModelSource(
            "models/qwen2.5-7b",
            shape="configs/shapes/qwen2.5-7b",
            compute_dtype="bfloat16",
            remat="attention",
        ),
        c.MeshConfig(data=4, fsdp=32, tensor=2),
    )
