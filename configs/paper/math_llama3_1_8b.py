"""Llama-3.1-8B-Instruct learns MATH: the paper's fourth setting.

The setting is that of `paper_setting.py`.

Commands:
    grre compile configs/paper/math_llama3_1_8b.py --topology v5p:4x4x4
    grre train configs/paper/math_llama3_1_8b.py
    grre train configs/paper/math_llama3_1_8b.py --regime.sync-interval 20
    grre train configs/paper/math_llama3_1_8b.py --regime.sync-offset 10
    grre train configs/paper/math_llama3_1_8b.py --regime.offline true
Needs:
    The checkpoint in models/llama-3.1-8b and MATH's folders train and test in data/math. The
    words around a question are our choice.
Hardware:
    TPU v5p:4x4x4.
Compiled by grre compile (jax 0.10.2, libtpu 0.0.42.1), not run:
    The train step fits, 63.88 of 94.75 GiB a chip; the sampler fits, 18.15 GiB for 128 prompts x 8
    in a call.
"""

from paper_setting import setting

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return setting(
        "math_llama3_1_8b",
        c.ModelSource(
            "models/llama-3.1-8b",
            shape="configs/shapes/llama-3.1-8b",
            compute_dtype="bfloat16",
            remat="projections",
        ),
        c.TaskConfig("math", {"path": "data/math", "most_prompt_characters": 800}),
        max_prompt_tokens=512,
        prompts_per_call=96,
        questions=512,
        mesh=c.MeshConfig(data=1, fsdp=64),
    )
