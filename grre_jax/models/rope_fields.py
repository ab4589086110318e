"""The rotary embedding's fields of a config.json: the layouts of transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grre_jax.errors import DataError
from grre_jax.models.config import ROPE_SCALINGS, ModelConfig, RopeScaling

# Where the field is absent: one base for all layers; Gemma 3's for full layers and for those that slide.
DEFAULT_THETA, FULL_THETA, LOCAL_THETA = 10_000.0, 1_000_000.0, 10_000.0
_FULL, _LOCAL = "full_attention", "sliding_attention"


def read(values: dict[str, Any], *, layered: bool, where: Path) -> tuple[float, RopeScaling | None, float]:
    """The rotary base, its scaling, and the base of sliding layers (0: they rotate as all others do).

    Args:
        values: the parsed config.json.
        layered: whether full and sliding layers have parameters of their own (Gemma 3).
        where: the file, for messages.

    Raises:
        DataError: naming the file and the field, for a malformed field or a kind of scaling that the model does not have.
    """
    parameters, scaling = (_object(values, key, where) for key in ("rope_parameters", "rope_scaling"))
    if layered:
        return _read_layered(values, parameters, scaling, where)
    for key, rope in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        nested = [name for name, value in rope.items() if isinstance(value, dict)]
        if nested:
            raise DataError(f"{where}: {key} of its own for {nested[0]} is not supported in this architecture: use one for all layers")
    # As in transformers 5, the older field decides where both are given.
    key, rope = ("rope_scaling", scaling) if scaling else ("rope_parameters", parameters)
    theta = _theta((scaling, parameters, values), "rope_theta", DEFAULT_THETA, where)
    return theta, _scaling(rope, values, key, where), 0.0


def _read_layered(values, parameters, scaling, where) -> tuple[float, RopeScaling | None, float]:
    flat = [name for name in parameters if name not in (_FULL, _LOCAL)]
    if flat:
        raise DataError(f"{where}: rope_parameters must hold {_FULL} and {_LOCAL} in this architecture, got {flat[0]}")
    full, local = (_object(parameters, key, where) for key in (_FULL, _LOCAL))
    full = full | scaling
    if _scaling(local, values, f"rope_parameters.{_LOCAL}", where) is not None:
        raise DataError(f"{where}: a scaled rotary embedding in sliding layers is not supported: only type 'default' is")
    theta = _theta((full, values), "rope_theta", FULL_THETA, where)
    local_theta = _theta((local, {"rope_theta": values.get("rope_local_base_freq")}), "rope_theta", LOCAL_THETA, where)
    return theta, _scaling(full, values, "rope_scaling" if scaling else f"rope_parameters.{_FULL}", where), local_theta


def _object(values: dict[str, Any], key: str, where: Path) -> dict[str, Any]:
    found = values.get(key) or {}
    if not isinstance(found, dict):
        raise DataError(f"{where}: {key} must be an object or null, got {found!r}")
    return found


def _theta(places: tuple[dict[str, Any], ...], key: str, default: float, where: Path) -> float:
    theta = next((place[key] for place in places if place.get(key)), default)
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not theta > 0:
        raise DataError(f"{where}: {key} must be a number above 0, got {theta!r}")
    return float(theta)


def _scaling(rope: dict[str, Any], values: dict[str, Any], key: str, where: Path) -> RopeScaling | None:
    """What an object of rotary fields says of scaling; None for none."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", values.get("partial_rotary_factor") or 1.0) != 1.0:
        raise DataError(f"{where}: partial_rotary_factor is not supported: only models that rotate the whole head are")
    if kind == "default":
        return None
    if kind not in ROPE_SCALINGS:
        raise DataError(f"{where}: {key} of type {kind} is not supported: only default, {' and '.join(ROPE_SCALINGS)} are")

    def number(name, kind=float):
        value = rope.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or kind(value) != value:
            raise DataError(f"{where}: {key}.{name} must be {'an integer' if kind is int else 'a number'}, got {value!r}")
        return kind(value)

    try:
        if kind == "linear":
            return RopeScaling(kind, number("factor"))
        # transformers 5 falls back to the model's own length, and lets a field outside the object decide.
        outer = {"original_max_position_embeddings": values.get("max_position_embeddings")}
        rope = outer | rope | {k: values[k] for k in outer if values.get(k)}
        original = number("original_max_position_embeddings", int)
        return RopeScaling(kind, number("factor"), number("low_freq_factor"), number("high_freq_factor"), original)
    except ValueError as error:
        raise DataError(f"{where}: {key}: {error}") from error


def write(config: ModelConfig, *, layered: bool) -> dict[str, Any]:
    """The fields of both layouts."""
    scaling: dict[str, Any] = {}
    if config.rope_scaling is not None:
        s = config.rope_scaling
        scaling = {"rope_type": s.kind, "factor": s.factor}
        if s.kind == "llama3":
            scaling |= {"low_freq_factor": s.low_freq_factor, "high_freq_factor": s.high_freq_factor}
            scaling["original_max_position_embeddings"] = s.original_positions
    old = {"rope_theta": config.rope_theta} | ({"rope_scaling": scaling} if scaling else {})
    full = {"rope_type": "default", "rope_theta": config.rope_theta} | scaling
    if not layered:
        return old | {"rope_parameters": full}
    local = config.local_rope_theta or config.rope_theta
    nested = {_FULL: full, _LOCAL: {"rope_type": "default", "rope_theta": local}}
    return old | {"rope_local_base_freq": local, "rope_parameters": nested}
