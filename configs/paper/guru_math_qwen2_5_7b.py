"""Qwen2.5-7B-Instruct learns Guru-Math: the paper's third setting.

The setting is that of `paper_setting.py`.

Commands:
    grre compile configs/paper/guru_math_qwen2_5_7b.py --topology v5e:8x8
    grre train configs/paper/guru_math_qwen2_5_7b.py
    grre train configs/paper/guru_math_qwen2_5_7b.py --regime.sync-interval 20
    grre train configs/paper/guru_math_qwen2_5_7b.py --regime.sync-offset 10
    grre train configs/paper/guru_math_qwen2_5_7b.py --regime.offline true
Needs:
    The checkpoint in models/qwen2.5-7b and Guru's math__combined_54.4k.parquet in
    data/guru/train.
Hardware:
    TPU v5e:8x8.
Compiled by grre compile (jax 0.10.2, libtpu 0.0.42.1), not run:
    The train step fits, 6.78 of 15.75 GiB a chip; the sampler fits, 10.62 GiB for 96 prompts x 8 in
    a call.
"""

from paper_setting import setting

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return setting(
        "guru_math_qwen2_5_7b",
        c.ModelSource(
            "models/qwen2.5-7b",
            shape="configs/shapes/qwen2.5-7b",
            compute_dtype="bfloat16",
            remat="attention",
        ),
        c.TaskConfig(
            "guru_math",
            {"path": "data/guru/train/math__combined_54.4k.parquet", "most_prompt_characters": 800},
        ),
        max_prompt_tokens=512,
        prompts_per_call=96,
        packs_per_microbatch=64,
        questions=500,  # as many as the task holds out
        mesh=c.MeshConfig(data=1, fsdp=32, tensor=2),
    )
