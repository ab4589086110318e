"""The fields of a config.json: domains of those of all families, those that change nothing, and
rotary fields: `rope_parameters` as transformers 5 normalises them, to `RopeScaling` and back.
"""

import math
from typing import Annotated, Any, Literal

from grre_jax.domains import AboveZero, checked
from grre_jax.json_files import check
from grre_jax.models.config import ModelConfig, RopeScaling

FULL = "full_attention"
SLIDING = "sliding_attention"
ORIGINAL = "original_max_position_embeddings"
PARTIAL = "partial_rotary_factor"

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)
_YARN = ("factor", "attention_factor", "beta_fast", "beta_slow", "truncate", ORIGINAL)
_OF_KIND = {"default": (), "linear": ("factor",), "llama3": _LLAMA3, "yarn": _YARN}

REQUIRED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"),
    "num_hidden_layers",
)
Names = tuple[str, ...] | None
NAMES = {"architectures": Names, "model_type": str | None}
# Domains of fields of several classes. A field without one, which is not mapped to an option of
# `ModelConfig`, is an option that the models lack: it may have the value that the class has for it.
DOMAINS = {
    "num_hidden_layers": Annotated[int, "[1, 10000]"],  # the classes make lists of so many
    "hidden_act": Literal["silu", "swish"],
    "hidden_activation": Literal["gelu_pytorch_tanh"],
    "is_causal": Literal[True],
}
# Fields that the classes and the models read without declaring them.
UNDECLARED = (
    "head_dim",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
    ORIGINAL,
)
# Fields that determine options by layer.
LAYERED = (
    *("rope_parameters", "layer_types", "sliding_window", "use_sliding_window"),
    *("max_window_layers", "no_rope_layers", "no_rope_layer_interval", "query_pre_attn_scalar"),
)
# Options that the models lack: any value but null, false, 0 and empty ones is refused.
UNSUPPORTED = (
    "mlp_bias quantization_config per_layer_config auto_map is_encoder_decoder add_cross_attention"
    " tie_encoder_decoder cross_attention_hidden_size pruned_heads use_mrope rope_interleaved"
    " use_bidirectional_attention sliding_window use_sliding_window mlp_only_layers clip_qkv"
).split()
# Of a Gemma3ForConditionalGeneration: the fields that are not of the text model, and what
# transformers takes for those of the text model that its text_config leaves out.
OF_IMAGES = (
    "architectures model_type text_config vision_config boi_token_index eoi_token_index"
    " image_token_index mm_tokens_per_image boi_token_id eoi_token_id image_token_id"
    " processor_class"
).split()
TEXT_DEFAULTS = {"model_type": "gemma3_text", "vocab_size": 262_208, "num_attention_heads": 8}
# Fields that do not change the output of a model, and why. Any value is accepted.
HARMLESS = (
    # Names the origin of the file.
    " _name_or_path name_or_path _commit_hash transformers_version transformers.js_config"
    " model_name unsloth_fixed unsloth_version is_llama_config finetuning_task"
    " tokenizer_class task_specific_params"
    # Selects the outputs and caches of transformers.
    " output_attentions output_hidden_states return_dict use_return_dict use_cache"
    " cache_implementation torchscript tie_last_hidden_states tf_legacy_loss"
    " gradient_checkpointing _attn_implementation_autoset _flash_attn_2_enabled"
    " experts_implementation attn_implementation _attn_implementation"
    " keys_to_ignore_at_inference"
    # Belongs to classification heads, which these architectures lack.
    " id2label label2id num_labels problem_type classifier_dropout"
    # Is the dtype of the stored tensors, whose files state it.
    " dtype torch_dtype use_bfloat16"
    # Is for training, whose forward pass draws nothing here.
    " initializer_range attention_dropout embd_pdrop resid_pdrop residual_dropout"
    " neftune_noise_alpha router_aux_loss_coef router_jitter_noise output_router_logits"
    # Is padding, which is masked.
    " pad_token_id"
    # Has no effect in these architectures (to transformers 5.23).
    " pretraining_tp chunk_size_feed_forward is_decoder attn_logit_softcapping"
    " _sliding_window_pattern max_sequence_length model_max_length"
    " tokenizer_model_max_length"
    # Is a default of generate(), in place of which a run has its own sampling settings.
    " assistant_confidence_threshold assistant_lookbehind bad_words_ids"
    " begin_suppress_tokens decoder_start_token_id diversity_penalty do_sample"
    " early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff"
    " eta_cutoff exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id"
    " length_penalty max_length max_new_tokens min_length no_repeat_ngram_size"
    " num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams"
    " num_return_sequences output_scores prefix remove_invalid_values repetition_penalty"
    " return_dict_in_generate sep_token_id suppress_tokens target_lookbehind temperature"
    " top_k top_p typical_p"
).split()
UNUSED = dict.fromkeys(HARMLESS, Any)


def read_rope(
    rope: dict[str, Any], prefix: str, kinds: tuple[str, ...]
) -> tuple[float, RopeScaling | None]:
    """Reads the rotary fields of the layers of a kind.

    Args:
        rope: the fields.
        prefix: of their names in messages.
        kinds: of scaling that the family has.

    Returns:
        The base, and its scaling or None.

    Raises:
        ConfigError: a field is malformed, or the kind of scaling is not supported.
    """
    kind = checked(
        f"{prefix}rope_type", Literal[("default", *kinds)], rope.get("rope_type", "default")
    )
    names = _OF_KIND[kind]
    domains = dict.fromkeys((*names, PARTIAL, "rope_type", "type"), Any)
    domains |= {"rope_theta": AboveZero}
    values = check(rope, domains, prefix, required=("rope_theta", *names[:1]))
    if kind == "default":
        return values["rope_theta"], None
    options = {name: values[name] for name in names if values.get(name) is not None}
    if ORIGINAL in options:
        options["original_positions"] = options.pop(ORIGINAL)
    if kind == "yarn":
        options.setdefault("attention_factor", 0.1 * math.log(max(1, values["factor"])) + 1)
    return values["rope_theta"], RopeScaling(kind, **options)


def write_rope(config: ModelConfig, *, layered: bool, partial: bool = False) -> dict[str, Any]:
    """Returns the rotary fields of a model in the layouts of transformers 4 and 5.

    Args:
        config: the shape.
        layered: True if full and sliding layers have separate parameters (Gemma 3, OLMo 3).
        partial: the family may rotate a part of each head.
    """
    rope: dict[str, Any] = {"rope_type": "default"}
    scaling = config.rope_scaling
    if scaling is not None:
        names = _OF_KIND[scaling.kind]
        rope = {n: getattr(scaling, n) for n in names if hasattr(scaling, n)}
        rope |= {"rope_type": scaling.kind}
        rope |= {ORIGINAL: scaling.original_positions} if ORIGINAL in names else {}
    share = {PARTIAL: config.rotary_share} if partial else {}
    theta = {"rope_theta": config.rope_theta}
    old = theta | share | ({"rope_scaling": rope | share} if scaling is not None else {})
    full = rope | share | theta
    if not layered:
        return old | {"rope_parameters": full}
    local = config.local_rope_theta or config.rope_theta
    nested = {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": local}}
    if config.family == "gemma3":
        old["rope_local_base_freq"] = local
    return old | {"rope_parameters": nested}
