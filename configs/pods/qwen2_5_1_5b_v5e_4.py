"""Qwen2.5-1.5B-Instruct learns GSM8K by GRPO on four v5e chips.

Shows a pod's global batch on one small host, in 48 micro-batches of 16 rows. The backward pass
computes the feed-forward half of each block again.

Commands:
    grre compile configs/pods/qwen2_5_1_5b_v5e_4.py --topology v5e:2x2
    grre train configs/pods/qwen2_5_1_5b_v5e_4.py
Needs:
    The checkpoint in models/qwen2.5-1.5b.
Hardware:
    TPU v5e:2x2.
Compiled by grre compile (jax 0.10.2, libtpu 0.0.42), not run:
    The train step fits, 13.6 of 15.75 GiB a chip. By default 168 rows a chip fit beside the train
    state (14.2 GiB, by arithmetic).
"""

from pod_setting import setting

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return setting(
        "qwen2_5_1_5b_v5e_4",
        c.ModelSource(
            "models/qwen2.5-1.5b",
            shape="configs/shapes/qwen2.5-1.5b",
            compute_dtype="bfloat16",
            remat="attention",
        ),
        c.MeshConfig(data=1, fsdp=4),
        packs_per_microbatch=16,
    )
