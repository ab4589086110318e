"""Qwen3-30B-A3B learns GSM8K by GRPO on 64 v5p chips, each token through the experts that sampled
it.

Commands:
    grre compile configs/pods/qwen3_30b_a3b_v5p_64.py --topology v5p:4x4x4
    grre train configs/pods/qwen3_30b_a3b_v5p_64.py
Needs:
    The checkpoint in models/qwen3-30b-a3b.
Hardware:
    TPU v5p:4x4x4.
Compiled by grre compile (jax 0.10.2, libtpu 0.0.42.1), not run:
    The train step, 12 micro-batches of a row a chip, fits: 17.6 of 94.75 GiB. The 1,920 prompts x 8
    of 20 steps are sampled in one call of 240 rows a chip, 43.8 GiB without optimizer state.
"""

import dataclasses

from pod_setting import setting

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    shared = setting(
        "qwen3_30b_a3b_v5p_64",
        c.ModelSource(
            "models/qwen3-30b-a3b",
            shape="configs/shapes/qwen3-30b-a3b",
            compute_dtype="bfloat16",
            remat="attended",
        ),
        c.MeshConfig(data=1, fsdp=16, expert=4),
        packs_per_microbatch=64,
    )
    return dataclasses.replace(
        shared,
        sampling=dataclasses.replace(shared.sampling, record_routes=True),
        training=dataclasses.replace(shared.training, replay_routes=True),
    )
