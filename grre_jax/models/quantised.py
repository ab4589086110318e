"""Matrices in int8 or fp8 with one float32 scale per output, and products with them.

A column's scale maps its largest entry to the largest number of the dtype. An entry then moves by
at most half a scale in int8, and in fp8 (e4m3) by at most a sixteenth of itself, or 2^-10 scales if
that is more.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

DTYPES = {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn}
MOST = {"int8": 127.0, "fp8": 448.0}


def quantise(
    w: Float[Array, "*stack in out"], name: str, axis: int = -2
) -> tuple[Array, Float[Array, "*stack out"]]:
    """Rounds a matrix to a narrower dtype, symmetrically about 0.

    Args:
        w: the matrix.
        name: in `DTYPES`.
        axis: of the inputs, over which a scale is shared.

    Returns:
        The stored numbers, as large as `w`, and the scale of each output; the matrix is nearly
        their product.
    """
    w = w.astype(jnp.float32)
    scale = jnp.maximum(jnp.abs(w).max(axis), 1e-30) / MOST[name]
    x = w / jnp.expand_dims(scale, axis)
    return (jnp.round(x) if name == "int8" else x).astype(DTYPES[name]), scale


def scaled_product(
    x: Float[Array, "*batch in"], values: Array, scale: Float[Array, " out"]
) -> Float[Array, "*batch out"]:
    """Computes x @ (values * scale) in float32 from a product in the dtype of `x`, which holds
    every stored number exactly.

    Args:
        x: inputs.
        values: [in, out] as stored, or already in the dtype of `x`.
        scale: [out].
    """
    if values.dtype != x.dtype:
        # A loop's program must read the narrow numbers: without the dependence on x it may convert
        # them once before the loop, and read the wide copy in every step.
        values, x = jax.lax.optimization_barrier((values, x))
    return jnp.matmul(x, values.astype(x.dtype), preferred_element_type=jnp.float32) * scale
