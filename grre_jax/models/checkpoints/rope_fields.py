"""Rotary fields of a config.json, in the layouts of transformers 4 (`rope_theta`, `rope_scaling`)
and 5 (`rope_parameters`).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from grre_jax.domains import AboveZero, ConfigError, Positive, checked
from grre_jax.json_files import check
from grre_jax.models.config import ModelConfig, RopeScaling

_FULL, _LOCAL = "full_attention", "sliding_attention"
ORIGINAL = "original_max_position_embeddings"
PARTIAL = "partial_rotary_factor"
RotaryShare = Annotated[float, "(0, 1]"] | None

_ALWAYS = {
    "rope_type": str,
    "type": str,
    "rope_theta": AboveZero,
    PARTIAL: RotaryShare,
}
_LINEAR = {"factor": AboveZero}
_LLAMA3 = {
    **_LINEAR,
    "low_freq_factor": AboveZero,
    "high_freq_factor": AboveZero,
    ORIGINAL: Positive,
}
_YARN = {
    **_LINEAR,
    **dict.fromkeys(("attention_factor", "beta_fast", "beta_slow"), AboveZero | None),
    **dict.fromkeys(("mscale", "mscale_all_dim"), float | None),
    "truncate": bool,
    ORIGINAL: Positive,
}
_OF_KIND = {"default": {}, "linear": _LINEAR, "llama3": _LLAMA3, "yarn": _YARN}

_Kind = Literal["default", "linear", "llama3", "yarn"]
Objects = dict[str, dict[str, Any]]  # of rotary fields, by the prefix of their names


def read(
    values: dict[str, Any], *, layered: bool, theta: float = 1e4, local_theta: float = 1e4
) -> tuple[float, RopeScaling | None, float]:
    """Reads the rotary fields; a file may have both layouts if they agree.

    Args:
        values: the checked config.json.
        layered: True if full and sliding layers have separate parameters (Gemma 3).
        theta: the base if the field is absent.
        local_theta: that of sliding layers, if they have one.

    Returns:
        The base, its scaling or None, and the base of sliding layers (0 if it is the same).

    Raises:
        ConfigError: a field is malformed, two fields contradict each other, or the kind of scaling
            is not supported.
    """
    parameters = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling") or {}
    name = "rope_parameters"
    if layered:
        if "type" in scaling and "rope_type" not in scaling:
            # transformers 5 ignores the older name in this architecture, and transformers 4 reads
            # it.
            raise ConfigError("rope_scaling.type", "rope_type in its place", scaling["type"])
        check(parameters, dict.fromkeys((_FULL, _LOCAL), dict | None), f"{name}.")
        local = {f"{name}.{_LOCAL}.": parameters.get(_LOCAL) or {}}
        if (scaled := _scaling(local, values)) is not None:
            raise ConfigError(f"{name}.{_LOCAL}", "no scaling in sliding layers", scaled.kind)
        older = {"rope_local_base_freq": values.get("rope_local_base_freq")}
        local_theta = _agreed(_field(local, "rope_theta") | older, local_theta)
        parameters = parameters.get(_FULL) or {}
        name = f"{name}.{_FULL}"
    objects = {f"{name}.": parameters, "rope_scaling.": scaling}
    found = _scaling(objects, values)
    # transformers reads it for these alone; folders without scaling carry it too.
    reads_original = found is not None and ORIGINAL in _OF_KIND[found.kind]
    if reads_original and values.get(ORIGINAL) not in (None, found.original_positions):
        domain = f"{found.original_positions}, as in the scaling"
        raise ConfigError(ORIGINAL, domain, values[ORIGINAL])
    theta = _agreed(_field(objects | {"": values}, "rope_theta"), theta)
    return float(theta), found, float(local_theta) if layered else 0.0


def rotary_share(values: dict[str, Any], default: float | None) -> float:
    """Returns the part of a head that is rotated.

    Args:
        values: the checked config.json.
        default: if the field is absent; None if the family rotates whole heads.

    Raises:
        ConfigError: two fields contradict each other, or the family rotates whole heads.
    """
    objects = {"": values}
    for name in ("rope_parameters", "rope_scaling"):
        rope = values.get(name) or {}
        objects |= {f"{name}.": rope}
        objects |= {f"{name}.{kind}.": rope.get(kind) or {} for kind in (_FULL, _LOCAL)}
    found = _field(objects, PARTIAL)
    for name, share in found.items():
        if default is None and share not in (None, 1):
            raise ConfigError(name, "1: this family rotates whole heads", share)
    # In transformers null is the whole head, also where an absent field is a part of it (GLM).
    return _agreed(found, 1.0 if PARTIAL in values else default or 1.0)


def _field(objects: Objects, field: str) -> dict[str, Any]:
    """Returns a field of several objects by its whole name."""
    return {f"{prefix}{field}": rope.get(field) for prefix, rope in objects.items()}


def _agreed(found: dict[str, Any], default: Any) -> Any:
    """Returns the common value of several fields; the default if all are None."""
    names = [name for name, value in found.items() if value is not None]
    for name in names[1:]:
        if found[name] != found[names[0]]:
            pair = [found[names[0]], found[name]]
            raise ConfigError(f"{names[0]} and {name}", "the same value", pair)
    return found[names[0]] if names else default


def _scaling(objects: Objects, values: dict[str, Any]) -> RopeScaling | None:
    """Returns the common scaling of objects of rotary fields; None for none."""
    found = {_scaling_of(rope, values, prefix) for prefix, rope in objects.items() if rope}
    if len(found) > 1:
        raise ConfigError(" and ".join(objects), "the same scaling", [*objects.values()])
    return found.pop() if found else None


def _scaling_of(rope: dict[str, Any], values: dict[str, Any], prefix: str) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("type", kind) != kind:
        raise ConfigError(f"{prefix}type", f"rope_type {kind!r}", rope["type"])
    domains = _OF_KIND[checked(f"{prefix}rope_type", _Kind, kind)]
    # transformers 5 takes the original length from outside the object, else the model's length.
    original = values.get(ORIGINAL) or values.get("max_position_embeddings")
    defaults = {ORIGINAL: original, "truncate": True}
    rope = {name: default for name, default in defaults.items() if name in domains} | rope
    found = check(rope, _ALWAYS | domains, prefix, required=domains.keys() & _LLAMA3)
    if kind == "default":
        return None
    given = {name: found[name] for name in domains if found.get(name) is not None}
    if ORIGINAL in given:
        given["original_positions"] = given.pop(ORIGINAL)
    mscale = given.pop("mscale", 0)
    all_dim = given.pop("mscale_all_dim", 0)
    if kind == "yarn":
        growth = 0.1 * math.log(max(1, given["factor"]))
        factor = growth + 1
        if mscale and all_dim:
            factor = (mscale * growth + 1) / (all_dim * growth + 1)
        given.setdefault("attention_factor", factor)
    return RopeScaling(kind, **given)


def write(config: ModelConfig, *, layered: bool, partial: bool = False) -> dict[str, Any]:
    """Returns the rotary fields of a model in both layouts.

    Args:
        config: the shape.
        layered: see `read`.
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
    nested = {_FULL: full, _LOCAL: {"rope_type": "default", "rope_theta": local}}
    if config.family == "gemma3":
        old["rope_local_base_freq"] = local
    return old | {"rope_parameters": nested}
