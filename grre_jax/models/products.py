"""Matrix products whose gradients XLA's CPU backend runs as fast as the products themselves.

Its fast path takes row-major operands that contract the left one's last axis with the right one's
first. The two products of a gradient are not of that form: in bfloat16 they run at half the speed
(measured: 400 against 900 GFLOP/s on two Zen 4 cores), in float32 that of the weights at three
quarters (360 against 480). A transposed copy of the operand wins most of that back. On other
backends these are the plain products.
"""

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from grre_jax.parallel import mesh as meshes


def transposed(x: Float[Array, "*batch m n"]) -> Float[Array, "*batch n m"]:
    """Exchanges the last two axes; in bfloat16 on CPU as a copy, which is faster in a product."""
    return _laid_out(x) if x.dtype == jnp.bfloat16 else jnp.swapaxes(x, -1, -2)


def _laid_out(x: Array) -> Array:
    """Exchanges the last two axes, on CPU as a copy."""
    y = jnp.swapaxes(x, -1, -2)
    if meshes.platform() != "cpu":
        return y
    return with_layout_constraint(y, Layout(tuple(range(y.ndim))))


def left_transposed_product(x: Float[Array, "n k"], g: Float[Array, "n m"]) -> Float[Array, "k m"]:
    """Computes x.T @ g; on CPU it transposes the smaller operand, and if needed the product."""
    if meshes.platform() != "cpu" or x.shape[1] <= g.shape[1]:
        return _laid_out(x) @ g
    return _laid_out(jax.lax.optimization_barrier(_laid_out(g) @ x))


def product(x: Float[Array, "n k"], w: Float[Array, "k m"]) -> Float[Array, "n m"]:
    """Computes x @ w, both of one dtype."""
    return _product(x, w) if meshes.platform() == "cpu" else x @ w


@jax.custom_vjp
def _product(x, w):
    return x @ w


def _forward(x, w):
    return x @ w, (x, w)


def _backward(residuals, g):
    x, w = residuals
    return g @ transposed(w), left_transposed_product(x, g)


_product.defvjp(_forward, _backward)


@jax.custom_vjp
def swiglu(gate: Float[Array, "n f"], up: Float[Array, "n f"]) -> Float[Array, "n f"]:
    """Computes silu(gate) * up in float32; the backward pass keeps only the two inputs."""
    return _swiglu(gate, up)


def _swiglu(gate, up):
    return (jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(gate.dtype)


def _swiglu_backward(residuals, g):
    gate, up, g32 = *(x.astype(jnp.float32) for x in residuals), g.astype(jnp.float32)
    sigmoid = jax.nn.sigmoid(gate)
    d_gate = g32 * up * sigmoid * (1 + gate * (1 - sigmoid))
    return d_gate.astype(g.dtype), (g32 * gate * sigmoid).astype(g.dtype)


swiglu.defvjp(lambda gate, up: (_swiglu(gate, up), (gate, up)), _swiglu_backward)
