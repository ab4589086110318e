"""Qwen2.5-1.5B-Instruct learns GSM8K: the paper's first setting.

The setting is that of `paper_setting.py`.

Commands:
    grre compile configs/paper/gsm8k_qwen2_5_1_5b.py --topology v5e:2x2
    grre train configs/paper/gsm8k_qwen2_5_1_5b.py
    grre train configs/paper/gsm8k_qwen2_5_1_5b.py --regime.sync-interval 20
    grre train configs/paper/gsm8k_qwen2_5_1_5b.py --regime.sync-offset 10
    grre train configs/paper/gsm8k_qwen2_5_1_5b.py --regime.offline true
Needs:
    The checkpoint in models/qwen2.5-1.5b. GSM8K comes from Hugging Face (extra hub), or with
    --task.options.path FOLDER. The longest question has 223 tokens by a tokenizer that cuts
    numbers into digits; the words around it are our choice.
Hardware:
    TPU v5e:2x2.
Compiled by grre compile (jax 0.10.2, libtpu 0.0.42.1), not run:
    The train step fits, 14.28 of 15.75 GiB a chip; the sampler fits, 6.62 GiB for 16 prompts x 8 in
    a call.
"""

from paper_setting import setting

from grre_jax import config as c


def config() -> c.Config:
    """Returns the configuration."""
    return setting(
        "gsm8k_qwen2_5_1_5b",
        c.ModelSource(
            "models/qwen2.5-1.5b",
            shape="configs/shapes/qwen2.5-1.5b",
            compute_dtype="bfloat16",
            remat="attention",
        ),
        c.TaskConfig(
            "gsm8k",
            {"template": "{question}\nReason step by step, and give the final number after ####."},
        ),
        max_prompt_tokens=384,
        prompts_per_call=16,
        packs_per_microbatch=16,
        questions=1319,
        mesh=c.MeshConfig(data=1, fsdp=4),
    )
