"""Rotary fields of a config.json: `rope_parameters` as transformers 5 normalises them, to
`RopeScaling` and back.
"""

import math
from typing import Any, Literal

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


def read(
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
    found = check(rope, domains, prefix, required=("rope_theta", *names[:1]))
    if kind == "default":
        return found["rope_theta"], None
    given = {name: found[name] for name in names if found.get(name) is not None}
    if ORIGINAL in given:
        given["original_positions"] = given.pop(ORIGINAL)
    if kind == "yarn":
        given.setdefault("attention_factor", 0.1 * math.log(max(1, found["factor"])) + 1)
    return found["rope_theta"], RopeScaling(kind, **given)


def write(config: ModelConfig, *, layered: bool, partial: bool = False) -> dict[str, Any]:
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
