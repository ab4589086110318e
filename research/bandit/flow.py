"""Trajectories of a field on the plane: du/dt = f(u) followed to its end, also where f jumps.

Only the orbit matters here, not the time it takes, so every step has a chosen length: dividing a
field by a positive number, even by one that differs on the two sides of a jump, changes neither its
orbits nor their ends (sliding along a jump included), nor what is stable.

A step is linearly implicit, (I - h J) du = h f with h = length / |f|: far from equilibria it is a
plain step along f, on a slow manifold the fast directions are damped, near a stable equilibrium it
becomes Newton's. J comes from differences, since losses hold much of their gradient fixed. h stays
below half the inverse of J's growth rate, so that no step is drawn towards an unstable equilibrium.

Where f jumps and points at the jump from both sides, the orbit slides along it, with what is left
of f without its part across. The jump is taken to lie across itself: a token's gradient is along
e_i - pi, and so is the normal of the curve on which its probability is constant, where masks and
clips switch. Where that does not hold, steps cross to and fro until they have shrunk to a point.

The field is a compiled function of its own and the step another, which all fields share: compiling
is what takes time here.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Points = Float[Array, "points 2"]
Trajectories = Float[Array, " points"]  # one value per trajectory
Margin = Callable[[Points], Trajectories]

ENDS = ("unsettled", "equilibrium", "boundary", "no gradient", "sliding", "not finite")
UNSETTLED, EQUILIBRIUM, BOUNDARY, NO_GRADIENT, SLIDING, NOT_FINITE = range(len(ENDS))

MAX_STEPS = 4096
# A step, in units of u; at the boundary, where only the distance to it still grows, as long as.
LONGEST = 0.05
LONGEST_AT_BOUNDARY = 1.0
# Where f turns abruptly: how exactly a jump is crossed; shortened until a point that chatters has
# settled.
SHORTEST = 1e-3
SLIDE = 100.0  # a step along a jump, in units of the length at which the jump was crossed
PASSED = 1e-5  # the end of a jump is found this exactly, in the same units
SETTLED = 1e-7  # chattering at this length is an end
# A step is taken back and halved where the cosine between f before and after is below this.
TURN = 0.95
SHIFT = 1e-6  # of the differences
WINDOW = 64  # steps over which progress is judged
# A window whose centre moved by less than this share of the way walked did not go anywhere.
PROGRESS = 0.02
NOTHING = 1e-200  # a speed that counts as no gradient
NEWTON = 1e100  # h |J| from which on a step is Newton's to every digit
EDGE = 1e-8  # a margin below which the point has reached the boundary
STRIDE = 4  # steps between the recorded points of a path


class End(NamedTuple):
    """The ends of trajectories.

    Attributes:
        points: [points, 2] the end.
        how: [points] index into `ENDS`.
        first_speed: [points] |f| at the start.
        path: [snapshots, points, 2] the way there, every `STRIDE` steps; a trajectory that has
            ended stays where it is.
    """

    points: Float[np.ndarray, "points 2"]
    how: Int[np.ndarray, " points"]
    first_speed: Float[np.ndarray, " points"]
    path: Float[np.ndarray, "snapshots points 2"]


class _State(NamedTuple):
    point: Points  # the last accepted
    field: Points  # f there
    jacobian: Float[Array, "points 2 2"]
    trial: Points
    slides: Bool[Array, " points"]  # whether the trial point lies along a jump
    beyond: Points  # f on the other side of it
    probes: Float[
        Array, "probes 2"
    ]  # where f is wanted next: at the trial points, and shifted along both axes
    length: Trajectories
    floor: Trajectories
    peak: Trajectories  # largest |f| met
    how: Int[Array, " points"]
    walked: Trajectories  # in this window
    slid: Bool[Array, " points"]  # in this window
    total: Points  # sum of the window's points
    centre: Points  # mean of the last window's points
    window_field: Points  # f at the end of the last window


def follow(field: Callable[[Points], Points], starts: Points, margin: Margin) -> End:
    """Follows du/dt = f(u) from every start until it ends. In float64.

    A trajectory ends at an equilibrium (the step to it is below 1e-10), at the boundary (its margin
    is below `EDGE`, and the field has died away or stopped changing, or it slides along a jump),
    where there is no gradient at all (the place where f drops to exactly 0 is found by halving the
    step), or where it chatters about a point of a jump at a length of `SETTLED`. One that has not
    ended after `MAX_STEPS` is "unsettled".

    Args:
        field: f of [3 * points, 2] points; point i belongs to trajectory i modulo their number.
        starts: [points, 2].
        margin: [points] how far each of [points, 2] points is from the boundary at infinity,
            positive; a module's function, traced once.

    Returns:
        The `End` of every trajectory.
    """
    state = _begin(jnp.asarray(starts), field(_probes(jnp.asarray(starts))))
    first_speed, path = np.asarray(state.peak), []
    for step in range(1, MAX_STEPS + 1):
        if step % STRIDE == 1:
            path.append(state.point)
        state = _advance(state, field(state.probes), margin=margin)
        if step % WINDOW == 0:
            state = _judge(state, margin=margin)
            if not np.any(np.asarray(state.how) == UNSETTLED):
                break
    return End(
        np.asarray(state.point), np.asarray(state.how), first_speed, np.array([*path, state.point])
    )


def _probes(points: Points) -> Float[Array, "probes 2"]:
    return (points + SHIFT * jnp.array([[[0.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])).reshape(-1, 2)


def _linearised(values: Float[Array, "probes 2"]) -> tuple[Points, Float[Array, "points 2 2"]]:
    """f and its Jacobian from f at `_probes`."""
    value, right, up = values.reshape(3, -1, 2)
    return value, jnp.stack([right - value, up - value], axis=-1) / SHIFT


@jax.jit
def _begin(starts: Points, values: Float[Array, "probes 2"]) -> _State:
    value, jacobian = _linearised(values)
    speed = jnp.linalg.norm(value, axis=-1)
    none = jnp.zeros_like(speed)
    trial = starts + _step(value, jacobian, none + SHORTEST)[0]
    return _State(
        point=starts,
        field=value,
        jacobian=jacobian,
        trial=trial,
        slides=jnp.zeros(none.shape, bool),
        beyond=value,
        probes=_probes(trial),
        length=none + SHORTEST,
        floor=none + SHORTEST,
        peak=speed,
        how=jnp.where(speed <= NOTHING, NO_GRADIENT, UNSETTLED),
        walked=none,
        slid=jnp.zeros(none.shape, bool),
        total=jnp.zeros_like(starts),
        centre=starts,
        window_field=value,
    )


class _Verdict(NamedTuple):
    """Decision on the trial points: accepted, or taken back for one of three reasons."""

    accepted: Bool[Array, " points"]
    shortened: Bool[Array, " points"]  # taken back: f stops here, or a slide passed the jump's end
    across: Bool[Array, " points"]  # f turned as it does at a jump
    newton: Bool[Array, " points"]
    moved: Trajectories


def _verdict(state: _State, value: Points) -> _Verdict:
    speed, last_speed = jnp.linalg.norm(value, axis=-1), jnp.linalg.norm(state.field, axis=-1)
    moved = jnp.linalg.norm(state.trial - state.point, axis=-1)
    cosine = jnp.sum(
        (value / jnp.maximum(speed, NOTHING)[:, None])
        * (state.field / jnp.maximum(last_speed, NOTHING)[:, None]),
        axis=-1,
    )
    # A step that came out much shorter than its length is Newton's, and may end on any side of the
    # equilibrium.
    newton = moved <= 0.5 * state.length
    across = (cosine < TURN) & ~newton & ~state.slides
    turned = across & (state.length > state.floor)
    stopped = (speed <= NOTHING) & (last_speed > 1e-6 * state.peak) & (state.floor > SETTLED)
    # A slide that arrives where f is neither side's has passed the end of that jump: it is
    # repeated, shorter.
    strange = jnp.minimum(_difference(value, state.field), _difference(value, state.beyond)) > 0.2
    passed = state.slides & strange & (state.floor > PASSED)
    accepted = ~(turned | stopped | passed) & (state.how == UNSETTLED)
    return _Verdict(accepted, stopped | passed, across, newton, moved)


@functools.partial(jax.jit, static_argnames="margin")
def _advance(state: _State, values: Float[Array, "probes 2"], *, margin: Margin) -> _State:
    """Accepts or takes back the trial points, and makes the next ones."""
    value, jacobian = _linearised(values)
    accepted, shortened, across, newton, moved = _verdict(state, value)
    point = jnp.where(accepted[:, None], state.trial, state.point)
    value = jnp.where(accepted[:, None], value, state.field)
    jacobian = jnp.where(accepted[:, None, None], jacobian, state.jacobian)
    outside = margin(point) < EDGE
    longer = jnp.minimum(1.3 * state.length, jnp.where(outside, LONGEST_AT_BOUNDARY, LONGEST))
    floor = jnp.where(shortened, state.floor / 2, state.floor)
    length = jnp.where(accepted, longer, jnp.maximum(state.length / 2, floor))
    length = jnp.where(shortened, floor, length)
    step, growth = _step(value, jacobian, length)
    speed = jnp.linalg.norm(value, axis=-1)
    peak = jnp.maximum(state.peak, speed)
    at_rest = (
        (jnp.linalg.norm(step, axis=-1) < 1e-10)
        & (speed < 1e-5 * peak)
        & (growth <= 1e-6 * peak)
        & ((speed > NOTHING) | newton)
    )
    along, meets = _along_jump(state.field, value)
    slides = accepted & across & meets & (speed > NOTHING)
    step = jnp.where(slides[:, None], SLIDE * floor[:, None] * along, step)
    ends = {
        NOT_FINITE: ~jnp.all(jnp.isfinite(step), axis=-1),
        EQUILIBRIUM: at_rest,
        NO_GRADIENT: speed <= NOTHING,
        BOUNDARY: outside & (speed <= 1e-10 * peak),
    }
    reached = jnp.select(list(ends.values()), list(ends), UNSETTLED)
    how = jnp.where(state.how == UNSETTLED, reached, state.how)
    trial = jnp.where((how == UNSETTLED)[:, None], point + step, point)
    return state._replace(
        point=point,
        field=value,
        jacobian=jacobian,
        trial=trial,
        slides=slides,
        beyond=jnp.where(slides[:, None], state.field, state.beyond),
        probes=_probes(trial),
        length=jnp.where(slides, floor, length),
        floor=floor,
        peak=peak,
        how=how,
        walked=state.walked + jnp.where(accepted, moved, 0),
        slid=state.slid | slides,
        total=state.total + point,
    )


@functools.partial(jax.jit, static_argnames="margin")
def _judge(state: _State, *, margin: Margin) -> _State:
    """At the end of a window, ends trajectories that do not get anywhere."""
    centre = state.total / WINDOW
    progress = jnp.linalg.norm(centre - state.centre, axis=-1) / jnp.maximum(state.walked, NOTHING)
    going = state.how == UNSETTLED
    chatters = going & (progress < PROGRESS) & (state.walked > 10 * state.floor)
    floor = jnp.where(
        chatters,
        state.floor / 2,
        jnp.where(progress > 0.5, jnp.minimum(2 * state.floor, SHORTEST), state.floor),
    )
    settled = chatters & (floor < SETTLED)
    change = _difference(state.window_field, state.field)
    constant = (
        going & (margin(state.point) < EDGE) & (((change < 1e-8) & (state.walked > 0)) | state.slid)
    )
    return state._replace(
        floor=floor,
        length=jnp.where(chatters, jnp.minimum(state.length, floor), state.length),
        how=jnp.where(settled, SLIDING, jnp.where(constant, BOUNDARY, state.how)),
        point=jnp.where(settled[:, None], centre, state.point),
        walked=jnp.zeros_like(state.walked),
        slid=jnp.zeros_like(state.slid),
        total=jnp.zeros_like(state.total),
        centre=centre,
        window_field=state.field,
    )


def _difference(value: Points, other: Points) -> Trajectories:
    return jnp.linalg.norm(value - other, axis=-1) / jnp.maximum(
        jnp.linalg.norm(other, axis=-1), NOTHING
    )


def _along_jump(before: Points, after: Points) -> tuple[Points, Trajectories]:
    """The direction in which an orbit slides between two sides with these fields, and True if both
    point at the jump between them.
    """
    jump = before - after
    across = jump / jnp.maximum(jnp.linalg.norm(jump, axis=-1, keepdims=True), NOTHING)
    towards, back = jnp.sum(before * across, axis=-1), jnp.sum(after * across, axis=-1)
    along = before - towards[:, None] * across
    size = jnp.linalg.norm(along, axis=-1, keepdims=True)
    return along / jnp.maximum(size, NOTHING), (towards > 0) & (back < 0) & (size[:, 0] > NOTHING)


def _step(
    value: Points, jacobian: Float[Array, "points 2 2"], length: Trajectories
) -> tuple[Points, Trajectories]:
    """The linearly implicit step of at most this length, and the growth rate of J (the largest
    real part of its eigenvalues).
    """
    (a, b), (c, d) = jnp.moveaxis(jacobian, 0, -1)
    speed = jnp.maximum(jnp.linalg.norm(value, axis=-1), NOTHING)
    growth = (a + d) / 2 + jnp.sqrt(jnp.maximum((a - d) ** 2 / 4 + b * c, 0))
    # Where f is all but exactly 0 the first bound is as good as infinite: Newton's step is reached
    # long before products with h overflow.
    steepest = jnp.maximum(jnp.abs(jacobian).max((-2, -1)), NOTHING)
    h = jnp.minimum(
        jnp.minimum(length / speed, 0.5 / jnp.maximum(growth, NOTHING)), NEWTON / steepest
    )
    a, b, c, d = 1 - h * a, -h * b, -h * c, 1 - h * d
    x, y = h * value[:, 0], h * value[:, 1]
    step = jnp.stack([d * x - b * y, a * y - c * x], axis=-1) / (a * d - b * c)[:, None]
    size = jnp.linalg.norm(step, axis=-1)
    return step * jnp.minimum(1, length / jnp.maximum(size, NOTHING))[:, None], growth
