"""Mixture of experts: the router, and the products of every expert with its own tokens.

A token's chosen experts are rows of one array, sorted by expert, so that no token is dropped and
nothing is padded. On TPU and GPU the products are `jax.lax.ragged_dot`, which XLA's CPU backend
computes for all pairs of tokens and experts; there a loop goes through the experts that have tokens
and reads the matrices of these alone. The weights' gradient is such a loop on all platforms, since
the TPU's compiler computes that of `ragged_dot` for all pairs too.

Over the mesh axis `expert` the experts are cut, and so are the tokens. Every device gathers the
tokens of its axis, computes what its experts add to them, and the sums are scattered back. With k
experts a token on E devices this moves 2 E numbers a token where an all-to-all moves 2 k (Qwen3: k
is 8), its shapes are static, and no routing needs more room than another.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, Integer

from grre_jax.models.products import transposed
from grre_jax.parallel import mesh as meshes

Rows = Float[Array, "tokens width"]
Choice = Int[Array, "tokens k"]  # of experts
Matrices = dict[str, Float[Array, "experts in out"]]  # by parameter

# Rows of a block: about a quarter of an expert's tokens, so that what is computed beyond its last
# one is an eighth of them; more on accelerators, which write the weights' gradient for each block.
LEAST_ROWS = 8
MOST_ROWS = 256
MOST_ROWS_OF_ACCELERATORS = 1024
# In place of the experts of a token that were not recorded.
UNKNOWN = 2**16 - 1


class Routing(NamedTuple):
    """Experts of some tokens.

    Attributes:
        chosen: [tokens, k] the experts of each token.
        likeliest: [tokens, k] those that the router chooses, in the order of their probabilities.
        weights: [tokens, k] factors of what they add, float32.
        probabilities: [tokens, experts] of the router, float32.
    """

    chosen: Choice
    likeliest: Choice
    weights: Float[Array, "tokens k"]
    probabilities: Float[Array, "tokens experts"]


class Router(NamedTuple):
    """What the routers of all layers did with the tokens of some rows.

    Attributes:
        load: [layers, experts] tokens that chose each expert, padding left out.
        probability: [layers, experts] sums of their probabilities; with a gradient.
        replayed: [layers] tokens whose experts were replayed.
        differing: [layers] sum over these of the share of their experts that the router would not
            have chosen.
    """

    load: Float[Array, "layers experts"]
    probability: Float[Array, "layers experts"]
    replayed: Float[Array, " layers"]
    differing: Float[Array, " layers"]

    @property
    def imbalance(self) -> Float[Array, ""]:
        """Load-balancing loss of the Switch Transformer (arXiv 2101.03961, eq. 4) for k experts a
        token, over the tokens of all layers together as in transformers: k if all experts have the
        same load, and as large as the number of experts if a token's first one never changes.
        """
        load = self.load.sum(0)
        probability = self.probability.sum(0)
        tokens = jnp.maximum(probability.sum(), 1)  # the probabilities of a token sum to 1
        return load.size * (load / tokens * (probability / tokens)).sum()


def route(
    h: Rows,
    router: Float[Array, "width experts"],
    count: int,
    normalise: bool,
    routes: Integer[Array, "tokens k"] | None = None,
) -> Routing:
    """Chooses the experts of each token, in float32.

    Args:
        h: inputs of the layer.
        router: the router's matrix.
        count: experts of a token.
        normalise: divide the weights by their sum.
        routes: experts to use in place of the likeliest (routing replay, arXiv 2510.11370), or
            UNKNOWN. The weights are then the router's for these, and keep their gradient.
    """
    logits = jnp.matmul(h.astype(jnp.float32), router.astype(jnp.float32))
    probabilities = jax.nn.softmax(logits, axis=-1)
    likeliest = jax.lax.top_k(jax.lax.stop_gradient(probabilities), count)[1]
    # Kept for the backward pass: what is computed again may be rounded to other experts.
    likeliest = checkpoint_name(likeliest, "routes")
    chosen = likeliest
    if routes is not None:
        chosen = jnp.where(routes == UNKNOWN, likeliest, routes.astype(likeliest.dtype))
    # By comparison, since a gather's gradient is a scatter.
    weights = jnp.where(_is_of(chosen, router.shape[1]), probabilities[:, None], 0).sum(axis=-1)
    if normalise:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return Routing(chosen, likeliest, weights, probabilities)


def _is_of(expert: Array, count: int) -> Array:
    """Returns which of `count` experts each entry is."""
    return expert[..., None] == jnp.arange(count)


def summed(
    routing: Routing,
    counted: Bool[Array, "rows length"],
    routes: Integer[Array, "rows length k"] | None,
) -> Router:
    """Returns the routing of one layer as `Router` has it, without the axis of layers.

    Args:
        routing: of all tokens of the rows.
        counted: tokens that are not padding.
        routes: experts that were replayed.
    """
    weights = counted.reshape(-1, 1).astype(jnp.float32)
    counts = _is_of(routing.chosen, routing.probabilities.shape[1]).sum(axis=1)
    load = (counts * weights).sum(0)
    probability = (routing.probabilities * weights).sum(0)
    if routes is None:
        return Router(load, probability, jnp.zeros(()), jnp.zeros(()))
    recorded = (routes[..., 0] != UNKNOWN) & counted
    likeliest = routing.likeliest.reshape(routes.shape)
    absent = ~(routes[..., :, None] == likeliest[..., None, :]).any(-1)
    differing = jnp.where(recorded, absent.mean(-1), 0).sum()
    return Router(load, probability, recorded.sum().astype(jnp.float32), differing)


def mixed(
    h: Rows,
    routing: Routing,
    matrices: Matrices,
    apply: Callable[..., Rows],
) -> Rows:
    """Computes the weighted sum of what each token's experts make of it.

    Args:
        h: inputs.
        routing: the experts and their weights.
        matrices: parameters of the experts by name, each [experts, ...], whole along fsdp.
        apply: `(rows, products, matrices) -> rows`, what the experts compute, where
            `products(rows, matrix)` multiplies each row with its expert's part of a matrix.
    """
    mesh = meshes.current()
    tokens = meshes.part(h.shape, "flat")
    specs = {
        name: meshes.spec(x.shape, meshes.without_fsdp(name)[1:], mesh)
        for name, x in matrices.items()
    }
    axes = {axis for spec in specs.values() for axis in spec if axis}
    gathers = "expert" in axes and tokens[0] is not None

    def local(h, chosen, weights, matrices):
        if gathers:
            h, chosen, weights = (
                jax.lax.all_gather(x, "expert", axis=0, tiled=True) for x in (h, chosen, weights)
            )
        count = next(iter(matrices.values())).shape[0]
        first = jax.lax.axis_index("expert") * count if "expert" in axes else 0
        y = _mixed(h, chosen - first, weights, matrices, apply, count)
        if gathers:
            y = jax.lax.psum_scatter(y, "expert", scatter_dimension=0, tiled=True)
        # Parts of sums: along tensor the hidden units are cut, and along expert, where the tokens
        # are whole, each device adds its own experts.
        rest = tuple(axis for axis in axes if axis != "expert" or not gathers)
        return jax.lax.psum(y, rest) if rest else y

    specs_in = (tokens, tokens, tokens, specs)
    call = meshes.mapped(local, specs_in, tokens)
    return call(h, routing.chosen, routing.weights.astype(h.dtype), matrices)


def _mixed(
    h: Rows,
    chosen: Choice,
    weights: Array,
    matrices: Matrices,
    apply: Callable[..., Rows],
    count: int,
) -> Rows:
    """Computes the sum over the `count` experts from number 0 on; other numbers add nothing."""
    tokens, k = chosen.shape
    expert = chosen.reshape(-1)
    # Experts of other devices get the largest number: their rows come last, where products are 0.
    expert = jnp.where((expert >= 0) & (expert < count), expert, count)
    order = jnp.argsort(expert, stable=True)
    inverse = jnp.argsort(order)
    sizes = _is_of(expert, count).sum(axis=0, dtype=jnp.int32)
    rows = _sorted_rows(h, order, inverse, k)
    y = apply(rows, partial(grouped_product, sizes=sizes), matrices)
    y = _permuted(y, inverse, order).reshape(tokens, k, -1)
    return (y * weights[..., None]).sum(axis=1)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _sorted_rows(h: Array, order: Array, inverse: Array, k: int) -> Array:
    """Returns the row of each of k times as many places; the gradient is a sum of k rows."""
    return h[order // k]


def _sorted_rows_backward(k, inverse, g):
    return g[inverse].reshape(-1, k, g.shape[-1]).sum(axis=1), None, None


_sorted_rows.defvjp(lambda h, order, inverse, k: (h[order // k], inverse), _sorted_rows_backward)


@jax.custom_vjp
def _permuted(x: Array, order: Array, inverse: Array) -> Array:
    """Returns x[order]; the gradient is taken by the inverse instead of scattered."""
    return x[order]


_permuted.defvjp(
    lambda x, order, inverse: (x[order], inverse), lambda inverse, g: (g[inverse], None, None)
)


@jax.custom_vjp
def grouped_product(
    x: Float[Array, "rows in"],
    w: Float[Array, "experts in out"],
    sizes: Int[Array, " experts"],
) -> Float[Array, "rows out"]:
    """Multiplies the first sizes[0] rows with w[0], the next sizes[1] with w[1], and so on; 0 for
    rows behind the last.
    """
    return _by_expert(x, w, sizes, lambda matrix: matrix)


def _backward(residuals, g):
    x, w, sizes = residuals
    return _by_expert(g, w, sizes, transposed), _of_weights(x, g, sizes, w.dtype), None


grouped_product.defvjp(lambda x, w, sizes: (grouped_product(x, w, sizes), (x, w, sizes)), _backward)


def _block_rows(rows: int, experts: int) -> int:
    most = MOST_ROWS if meshes.platform() == "cpu" else MOST_ROWS_OF_ACCELERATORS
    least = max(LEAST_ROWS, min(most, rows // (4 * experts)))
    return 1 << (least.bit_length() - 1)


def _loop(sizes: Array, block: int, start: Callable, body: Callable, end: Callable, x):
    """Goes through the experts that have rows, and through the blocks of each one's rows."""
    firsts = jnp.cumsum(sizes) - sizes
    busy = jnp.argsort(sizes == 0, stable=True)  # those with rows first, in their order

    def of_expert(i, carry):
        expert = busy[i]
        blocks = -(-sizes[expert] // block)
        inner = start(expert)

        def of_block(j, both):
            return body(expert, firsts[expert] + j * block, *both)

        return end(expert, *jax.lax.fori_loop(0, blocks, of_block, (inner, carry)))

    return jax.lax.fori_loop(0, (sizes > 0).sum(), of_expert, x)


def _by_expert(x: Array, w: Array, sizes: Array, form: Callable[[Array], Array]) -> Array:
    """Multiplies the rows of each expert with its matrix in a form.

    On CPU in blocks: what a block computes beyond its expert's rows is overwritten by the next
    expert's, or set to 0 at the end.
    """
    if meshes.platform() != "cpu":
        return jax.lax.ragged_dot(x, form(w), sizes)
    rows = x.shape[0]
    block = _block_rows(x.shape[0], w.shape[0])
    # JAX moves a slice that reaches beyond the end back, to other rows than were asked for.
    padded = jnp.pad(x, ((0, block), (0, 0)))
    out = jax.eval_shape(form, w[0]).shape[1]

    def body(_, at, matrix, y):
        part = jax.lax.dynamic_slice_in_dim(padded, at, block)
        return matrix, jax.lax.dynamic_update_slice_in_dim(y, part @ matrix, at, 0)

    y = _loop(
        sizes,
        block,
        lambda expert: form(jax.lax.dynamic_index_in_dim(w, expert, keepdims=False)),
        body,
        lambda _, matrix, y: y,
        jnp.zeros((rows + block, out), x.dtype),
    )[:rows]
    return jnp.where(jnp.arange(rows)[:, None] < sizes.sum(), y, 0)


def _of_weights(x: Array, g: Array, sizes: Array, dtype) -> Array:
    """Computes x.T @ g of each expert's rows; 0 for one without."""
    block = _block_rows(x.shape[0], sizes.shape[0])
    ends = jnp.cumsum(sizes)
    x, g = (jnp.pad(y, ((0, block), (0, 0))) for y in (x, g))

    def body(expert, at, total, w):
        x_part = jax.lax.dynamic_slice_in_dim(x, at, block)
        g_part = jax.lax.dynamic_slice_in_dim(g, at, block)
        inside = (at + jnp.arange(block) < ends[expert])[:, None]
        g_part = jnp.where(inside, g_part, 0)  # 0 in one factor is enough
        product = jnp.matmul(x_part.T, g_part, preferred_element_type=jnp.float32)
        return total + product, w

    return _loop(
        sizes,
        block,
        lambda _: jnp.zeros((x.shape[1], g.shape[1]), jnp.float32),
        body,
        lambda expert, total, w: w.at[expert].set(total.astype(dtype)),
        jnp.zeros((sizes.shape[0], x.shape[1], g.shape[1]), dtype),
    )
