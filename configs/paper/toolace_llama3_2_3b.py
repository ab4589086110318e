"""Llama-3.2-3B-Instruct learns to call ToolACE's functions: the paper's second setting.

The setting is that of `paper_setting.py`.

Commands:
    grre compile configs/paper/toolace_llama3_2_3b.py --topology v5e:4x4
    grre train configs/paper/toolace_llama3_2_3b.py
    grre train configs/paper/toolace_llama3_2_3b.py --regime.sync-interval 20
    grre train configs/paper/toolace_llama3_2_3b.py --regime.sync-offset 10
    grre train configs/paper/toolace_llama3_2_3b.py --regime.offline true
Needs:
    The checkpoint in models/llama-3.2-3b and ToolACE's data.json in data/toolace. Rewards
    compare function calls.
Hardware:
    TPU v5e:4x4.
Compiled by grre compile (jax 0.10.2, libtpu 0.0.42.1), not run:
    The train step fits, 9.86 of 15.75 GiB a chip; the sampler fits, 10.97 GiB for 32 prompts x 8 in
    a call.
"""

from paper_setting import setting

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return setting(
        "toolace_llama3_2_3b",
        c.ModelSource(
            "models/llama-3.2-3b",
            shape="configs/shapes/llama-3.2-3b",
            compute_dtype="bfloat16",
            remat="attention",
        ),
        c.TaskConfig("toolace", {"path": "data/toolace/data.json", "most_prompt_characters": 5000}),
        max_prompt_tokens=2048,
        prompts_per_call=32,
        packs_per_microbatch=16,
        questions=500,  # as many as the task holds out
        mesh=c.MeshConfig(data=1, fsdp=16),
    )
