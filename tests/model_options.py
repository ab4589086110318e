"""Options of `ModelConfig` that models are tested with in several rooms."""

# Those of the families beside Llama, Qwen and Gemma 3, on two layers.
OTHER_FAMILIES = {
    "qk_norm": True,
    "whole_qk_norm": True,
    "pre_norms": False,
    "post_norms": True,
    "attention_softcap": 0.9,
    "residual_multiplier": 0.7,
    "logit_divisor": 2.0,
    "interleaved_rotary": True,
    "rotated_layers": (True, False),
    "sliding_window": 3,
    "sliding_layers": (False, True),
}
