"""Rotary fields of a config.json, in the layouts of transformers 4 (`rope_theta`, `rope_scaling`)
and 5 (`rope_parameters`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError
from grre_jax.json_files import FLAG, NULL, OBJECT, TEXT, check, integer, number, off, require
from grre_jax.models.config import ROPE_SCALINGS, ModelConfig, RopeScaling

# Bases if the field is absent: of all layers; of the full and of the sliding layers of Gemma 3.
DEFAULT_THETA, FULL_THETA, LOCAL_THETA = 10_000.0, 1_000_000.0, 10_000.0
_FULL, _LOCAL = "full_attention", "sliding_attention"
ORIGINAL = "original_max_position_embeddings"
WHOLE_HEAD = off(1, 1.0, None)  # partial_rotary_factor

_ALWAYS = {
    "rope_type": TEXT,
    "type": TEXT,
    "rope_theta": number(above=0),
    "partial_rotary_factor": WHOLE_HEAD,
}
_LINEAR = {"factor": number(above=0)}
_LLAMA3 = {
    **_LINEAR,
    "low_freq_factor": number(above=0),
    "high_freq_factor": number(above=0),
    ORIGINAL: integer(1),
}
_YARN = {
    **_LINEAR,
    **dict.fromkeys(("attention_factor", "beta_fast", "beta_slow"), number(above=0) | NULL),
    **dict.fromkeys(("mscale", "mscale_all_dim"), number() | NULL),
    "truncate": FLAG,
    ORIGINAL: integer(1),
}
_OF_KIND = {"default": {}, "linear": _LINEAR, "llama3": _LLAMA3, "yarn": _YARN}

Objects = dict[str, dict[str, Any]]  # of rotary fields, by name


def read(
    values: dict[str, Any], *, layered: bool, where: Path
) -> tuple[float, RopeScaling | None, float]:
    """Reads the rotary fields; a file may have both layouts if they agree.

    Args:
        values: the parsed config.json.
        layered: True if full and sliding layers have separate parameters (Gemma 3).
        where: the file, for messages.

    Returns:
        The base, its scaling or None, and the base of sliding layers (0 if it is the same).

    Raises:
        DataError: a field is malformed, two fields contradict each other, or the kind of scaling is
            not supported. Names the file and the field.
    """
    parameters, scaling = (
        _object(values, key, where) for key in ("rope_parameters", "rope_scaling")
    )
    if layered:
        return _read_layered(values, parameters, scaling, where)
    objects = {"rope_parameters": parameters, "rope_scaling": scaling}
    objects = {key: rope for key, rope in objects.items() if rope}
    for key, rope in objects.items():
        nested = [name for name, value in rope.items() if isinstance(value, dict)]
        if nested:
            raise DataError(
                f"{where}: a separate {key} for {nested[0]} is not supported in this architecture:"
                " use one for all layers"
            )
    found = _scalings(objects, values, where)
    # transformers reads it for these alone; folders without scaling carry it too.
    reads_original = found is not None and ORIGINAL in _OF_KIND[found.kind]
    if reads_original and values.get(ORIGINAL) not in (None, found.original_positions):
        raise DataError(
            f"{where}: {ORIGINAL} = {values[ORIGINAL]} contradicts the rope_scaling: write it there"
            " alone"
        )
    return _theta(objects | {"": values}, DEFAULT_THETA, where), found, 0.0


def _read_layered(values, parameters, scaling, where) -> tuple[float, RopeScaling | None, float]:
    flat = [name for name in parameters if name not in (_FULL, _LOCAL)]
    if flat:
        raise DataError(
            f"{where}: rope_parameters: expected {_FULL} and {_LOCAL} in this architecture, got"
            f" {flat[0]}"
        )
    if "type" in scaling and "rope_type" not in scaling:
        # transformers 5 ignores the older name in this architecture, and transformers 4 reads it.
        raise DataError(
            f"{where}: rope_scaling.type is ambiguous in this architecture: write rope_type instead"
        )
    name = f"rope_parameters.{_LOCAL}"
    local = {name: _object(parameters, _LOCAL, where, "rope_parameters.")}
    if _scaling(local[name], values, name, where) is not None:
        raise DataError(
            f"{where}: a scaled rotary embedding in sliding layers is not supported: only type"
            " 'default' is"
        )
    full = {
        f"rope_parameters.{_FULL}": _object(parameters, _FULL, where, "rope_parameters."),
        "rope_scaling": scaling,
    }
    full = {key: rope for key, rope in full.items() if rope}
    found = _scalings(full, values, where)
    older = "rope_local_base_freq"
    local[older] = {"rope_theta": values[older]} if older in values else {}
    local_theta = _theta(local, LOCAL_THETA, where)
    return _theta(full | {"": values}, FULL_THETA, where), found, local_theta


def _object(values: dict[str, Any], key: str, where: Path, prefix: str = "") -> dict[str, Any]:
    return require(values.get(key), OBJECT | NULL, where, prefix + key) or {}


def _theta(objects: Objects, default: float, where: Path) -> float:
    """Returns the base on which all objects that have one agree; "" is the file's top level."""
    found = {
        f"{key}.rope_theta".lstrip("."): float(rope["rope_theta"])
        for key, rope in objects.items()
        if "rope_theta" in rope
    }
    return default if not found else _agreed(found, where)


def _agreed(found: dict[str, Any], where: Path) -> Any:
    """Returns the common value of several fields; None without fields."""
    (one, value), *others = [*found.items()] or [("", None)]
    for other, second in others:
        if second != value:
            raise DataError(
                f"{where}: {one} ({value}) and {other} ({second}) contradict each other: keep the"
                " one that the model was trained with"
            )
    return value


def _scalings(objects: Objects, values: dict[str, Any], where: Path) -> RopeScaling | None:
    return _agreed(
        {key: _scaling(rope, values, key, where) for key, rope in objects.items()}, where
    )


def _scaling(
    rope: dict[str, Any], values: dict[str, Any], key: str, where: Path
) -> RopeScaling | None:
    """Returns the scaling in an object of rotary fields; None for none."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("type", kind) != kind:
        raise DataError(
            f"{where}: {key}.type {rope['type']!r} contradicts {key}.rope_type {kind!r}: keep one"
            " of them"
        )
    if kind not in ("default", *ROPE_SCALINGS):
        raise DataError(
            f"{where}: {key} of type {kind} is not supported: only default,"
            f" {', '.join(ROPE_SCALINGS)} are"
        )
    domains = _OF_KIND[kind]
    check(rope, _ALWAYS | domains, where, f"{key}.")
    if kind == "default":
        return None
    # transformers 5 takes the original length from outside the object, else the model's length.
    original = values.get(ORIGINAL) or values.get("max_position_embeddings")
    rope = {ORIGINAL: original, "truncate": True} | rope
    given = {
        name: require(rope.get(name), domain, where, f"{key}.{name}")
        for name, domain in domains.items()
    }
    original = given.pop(ORIGINAL, RopeScaling.original_positions)
    truncate = given.pop("truncate", True)
    if kind == "yarn":
        given["attention_factor"] = _attention_factor(given)
    factors = {name: float(value) for name, value in given.items() if value is not None}
    try:
        return RopeScaling(kind, original_positions=original, truncate=truncate, **factors)
    except ValueError as error:
        raise DataError(f"{where}: {key}: {error}") from error


def _attention_factor(given: dict[str, Any]) -> float:
    """Returns yarn's factor of cosines and sines; removes the fields that it follows from."""
    stored, mscale, all_dim = (
        given.pop(name) for name in ("attention_factor", "mscale", "mscale_all_dim")
    )
    growth = 0.1 * math.log(max(1, given["factor"]))
    if stored is not None:
        return stored
    if mscale and all_dim:
        return (mscale * growth + 1) / (all_dim * growth + 1)
    return growth + 1


def write(config: ModelConfig, *, layered: bool) -> dict[str, Any]:
    """Returns the rotary fields of a model in both layouts; see `read`."""
    scaling: dict[str, Any] = {}
    if config.rope_scaling is not None:
        s = config.rope_scaling
        scaling = {
            "rope_type": s.kind,
            **{n: getattr(s, n) for n in _OF_KIND[s.kind] if hasattr(s, n)},
        }
        if ORIGINAL in _OF_KIND[s.kind]:
            scaling[ORIGINAL] = s.original_positions
    old = {"rope_theta": config.rope_theta} | ({"rope_scaling": scaling} if scaling else {})
    full = {"rope_type": "default", "rope_theta": config.rope_theta} | scaling
    if not layered:
        return old | {"rope_parameters": full}
    local = config.local_rope_theta or config.rope_theta
    nested = {_FULL: full, _LOCAL: {"rope_type": "default", "rope_theta": local}}
    return old | {"rope_local_base_freq": local, "rope_parameters": nested}
