"""Matrix products whose gradients XLA's CPU backend runs as fast as the products themselves.

Its fast path takes row-major operands that contract the left one's last axis with the right one's first. The two products of a gradient do not look like that: in
bfloat16 they then run at half the speed (measured: 400 against 900 GFLOP/s on two Zen 4 cores). Laying the transposed operand out anew costs a copy and wins the rest.
In float32, and on other backends, these are the plain products.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from grre_jax.parallel import mesh as meshes


def transposed(x: Float[Array, "*batch m n"]) -> Float[Array, "*batch n m"]:
    """The last two axes exchanged; where it pays in memory too, which XLA would otherwise fold into the product."""
    y = jnp.swapaxes(x, -1, -2)
    return with_layout_constraint(y, Layout(tuple(range(y.ndim)))) if _pays(x) else y


def _pays(x: Array) -> bool:
    return meshes.platform() == "cpu" and x.dtype == jnp.bfloat16


def left_transposed_product(x: Float[Array, "n k"], g: Float[Array, "n m"]) -> Float[Array, "k m"]:
    """x.T @ g; where laying out anew pays, it is the smaller of the two that is, and the product."""
    if not _pays(x) or x.shape[1] <= g.shape[1]:
        return transposed(x) @ g
    return transposed(jax.lax.optimization_barrier(transposed(g) @ x))


def product(x: Float[Array, "n k"], w: Float[Array, "k m"]) -> Float[Array, "n m"]:
    """x @ w, both of one dtype."""
    return _half_product(x, w) if _pays(x) else x @ w


@jax.custom_vjp
def _half_product(x, w):
    return x @ w


def _forward(x, w):
    return x @ w, (x, w)


def _backward(residuals, g):
    x, w = residuals
    return g @ transposed(w), left_transposed_product(x, g)


_half_product.defvjp(_forward, _backward)


@jax.custom_vjp
def swiglu(gate: Float[Array, "n f"], up: Float[Array, "n f"]) -> Float[Array, "n f"]:
    """silu(gate) * up, computed in float32; the backward pass keeps the two inputs alone."""
    return _swiglu(gate, up)


def _swiglu(gate, up):
    return (jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(gate.dtype)


def _swiglu_backward(residuals, g):
    gate, up, g32 = *(x.astype(jnp.float32) for x in residuals), g.astype(jnp.float32)
    sigmoid = jax.nn.sigmoid(gate)
    d_gate = g32 * up * sigmoid * (1 + gate * (1 - sigmoid))
    return d_gate.astype(g.dtype), (g32 * gate * sigmoid).astype(g.dtype)


swiglu.defvjp(lambda gate, up: (_swiglu(gate, up), (gate, up)), _swiglu_backward)
