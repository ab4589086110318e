"""The bandit's study of a case: the end of the expected update, the strength at which that is arm
3, and sampled runs.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from research.bandit import flow
from research.bandit.cases import (
    BEHAVIOR,
    BEST,
    COUNTS,
    PLANE,
    STARTS,
    Case,
    policies,
    update,
)

TRAJECTORIES = 64  # flows that are followed at once
# Sampled. A flow computes three points per trajectory, so that one compilation serves both.
RUNS, UPDATES = 3 * TRAJECTORIES, 1000
# Length of the first expected update of the sampled runs, in logits; it sets their step size.
FIRST_STEP = 0.05
# A sweep reaches two decades either side of the default, with four values in each; bisection
# rounds.
DECADES, PER_DECADE, ROUNDS = 2, 4, 2
# Numbers that change the length of an update and never its direction here.
RESCALING = {"std_epsilon", "constant_length"}
# Compiling takes longer than running: quick to make rather than quick.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
LOST = ("unsettled", "not finite")  # ends that are none


@dataclass(frozen=True)
class Sweep:
    """The end as a function of one number, from the behaviour policy.

    Attributes:
        number: its name.
        values: [n] ascending.
        ends: [n, 3] policies.
        best_leads: the ranges of the number in which arm 3 leads, their bounds bisected; a bound at
            the sweep's own end is that value.
    """

    number: str
    values: tuple[float, ...]
    ends: np.ndarray
    best_leads: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Result:
    """The results of one case.

    Attributes:
        case: the case.
        ends: for each of `STARTS`, the policy [3] it ended at.
        how: for each of `STARTS`, how it ended, one of `flow.ENDS`.
        paths: for each of `STARTS`, the policies [snapshots, 3] on the way.
        sweeps: one for each number.
        given_up: pairs (number, value) whose flow had not ended after `flow.MAX_STEPS`; the sweeps
            leave them out.
        sampled: [runs, 3] the policies after the sampled updates.
    """

    case: Case
    ends: Mapping[str, np.ndarray]
    how: Mapping[str, str]
    paths: Mapping[str, np.ndarray]
    sweeps: tuple[Sweep, ...]
    given_up: tuple[tuple[str, float], ...]
    sampled: np.ndarray

    @property
    def end(self) -> np.ndarray:
        """[3] the end from the behaviour policy."""
        return self.ends["behavior"]

    @property
    def leads(self) -> int:
        """The arm, 0 to 2, that is likeliest there."""
        return int(np.argmax(self.end))

    @property
    def agree(self) -> bool:
        """True if every start ended at the same policy."""
        return all(np.abs(end - self.end).max() < 5e-3 for end in self.ends.values())


def study(case: Case, *, seed: int = 0) -> Result:
    """Follows the expected update from every start, sweeps every number, and makes the sampled
    runs, in float64.

    Args:
        case: the objective to minimise.
        seed: of the sampled updates.

    Returns:
        The `Result`.
    """
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        pull = jax.jit(_pull(case), compiler_options=QUICK)
        settle = functools.partial(_settle, case, pull)
        grids = {number: _grid(case, number) for number in case.numbers if number not in RESCALING}
        first = settle([({}, start) for start in STARTS.values()])
        tried = [(number, value) for number, values in grids.items() for value in values]
        ends, given_up = {number: {} for number in grids}, []
        for number, value, end in _swept(settle, tried):
            if end is None:
                given_up.append((number, value))
            else:
                ends[number][value] = end
        bounds = _bisect(settle, ends)
        return Result(
            case=case,
            ends=dict(zip(STARTS, policies(first.points), strict=True)),
            how={start: flow.ENDS[code] for start, code in zip(STARTS, first.how, strict=True)},
            paths=dict(zip(STARTS, np.moveaxis(policies(first.path), 1, 0), strict=True)),
            sweeps=tuple(_sweep(number, values, bounds[number]) for number, values in ends.items()),
            given_up=tuple(given_up),
            sampled=_sample(
                case, pull, seed, FIRST_STEP / max(float(first.first_speed[0]), flow.NOTHING)
            ),
        )


def _swept(
    settle, tried: Sequence[tuple[str, float]]
) -> list[tuple[str, float, np.ndarray | None]]:
    """Pairs of a number and its value with the end from the behaviour policy; None for a flow that
    has none.
    """
    found = settle([({number: value}, BEHAVIOR) for number, value in tried])
    ends = zip(tried, policies(found.points), found.how, strict=True)
    return [(*pair, None if flow.ENDS[code] in LOST else end) for pair, end, code in ends]


def _grid(case: Case, number: str) -> list[float]:
    """Values around the default that the library takes; 0 and negative ones where it does."""
    middle = abs(case.numbers[number]) or 1.0
    ladder = [
        middle * 10 ** (step / PER_DECADE)
        for step in range(-DECADES * PER_DECADE, DECADES * PER_DECADE + 1)
    ]
    values = {*ladder, *(-value for value in ladder), 0.0, case.numbers[number]}
    return sorted(value for value in values if case.accepts(number, value))


def _pull(case: Case):
    """The updates of many points as directions of `PLANE`: a function of (numbers [points], points
    [points, 2], arms [points, responses], keys [points]) returning [points, 2]. The one function
    that is compiled for a case.
    """
    step = update(case)
    return jax.vmap(
        lambda numbers, point, arms, key: PLANE @ step(numbers, point @ PLANE, arms, key)
    )


def _margin(points: Float[Array, "points 2"]) -> Float[Array, " points"]:
    return jnp.min(jax.nn.softmax(points @ PLANE), axis=-1)


def _settle(
    case: Case, pull, pairs: Sequence[tuple[Mapping[str, float], Sequence[float]]]
) -> flow.End:
    """The ends of pairs (numbers that differ from the case's, start), under the expected update."""
    arms = jax.device_put(np.tile(np.repeat(np.arange(3), COUNTS), (3 * TRAJECTORIES, 1)))
    keys = jax.random.split(jax.random.key(0), 3 * TRAJECTORIES)
    ends = []
    for first in range(0, len(pairs), TRAJECTORIES):
        chunk = pairs[first : first + TRAJECTORIES]
        full = [*chunk, *[chunk[-1]] * (TRAJECTORIES - len(chunk))]
        numbers = jax.device_put(
            {
                number: np.tile([given.get(number, value) for given, _ in full], 3)
                for number, value in case.numbers.items()
            }
        )
        starts = np.log([start for _, start in full]) @ PLANE.T
        ends.append(
            flow.follow(lambda points, n=numbers: pull(n, points, arms, keys), starts, _margin)
        )
    if not ends:
        return flow.End(np.zeros((0, 2)), np.zeros(0, int), np.zeros(0), np.zeros((0, 0, 2)))
    joined = (np.concatenate(arrays)[: len(pairs)] for arrays in list(zip(*ends, strict=True))[:3])
    return flow.End(*joined, ends[0].path[:, : len(pairs)])


def _bisect(settle, known: Mapping[str, dict[float, np.ndarray]]) -> dict[str, list[float]]:
    """The values of each number at which the lead passes to or from arm 3: brackets, each round
    divided by the trajectories that there are.
    """
    leads = {
        number: {value: np.argmax(end) == BEST for value, end in ends.items()}
        for number, ends in known.items()
    }
    for _ in range(ROUNDS):
        brackets = [
            (number, *bracket) for number, values in leads.items() for bracket in _brackets(values)
        ]
        if not brackets:
            break
        each = max(1, TRAJECTORIES // len(brackets))
        tried = [
            (number, value) for number, low, high in brackets for value in _between(low, high, each)
        ][:TRAJECTORIES]
        for number, value, end in _swept(settle, tried):
            if end is not None:
                leads[number][value] = np.argmax(end) == BEST
    return {number: _bounds(values) for number, values in leads.items()}


def _bounds(leads: Mapping[float, bool]) -> list[float]:
    """The values at which the lead changes.

    Close to such a value the last digits of a flow decide, and two changes within a percent are
    none.
    """
    found: list[float] = []
    for low, high in _brackets(leads):
        middle = (low + high) / 2
        if found and middle - found[-1] <= 0.01 * abs(middle):
            found.pop()
        else:
            found.append(middle)
    return found


def _brackets(leads: Mapping[float, bool]) -> list[tuple[float, float]]:
    return [
        (low, high) for low, high in itertools.pairwise(sorted(leads)) if leads[low] != leads[high]
    ]


def _between(low: float, high: float, count: int) -> list[float]:
    """`count` values strictly inside a bracket, evenly spaced, in the logarithm where both ends
    have one.
    """
    shares = np.linspace(0, 1, count + 2)[1:-1]
    return [
        float(low * (high / low) ** share if low > 0 else low + (high - low) * share)
        for share in shares
    ]


def _sweep(number: str, ends: Mapping[float, np.ndarray], bounds: Sequence[float]) -> Sweep:
    values = sorted(ends)
    first = np.argmax(ends[values[0]]) == BEST
    ranges = itertools.pairwise([values[0], *bounds, values[-1]])
    best_leads = tuple(pair for index, pair in enumerate(ranges) if (index % 2 == 0) == first)
    return Sweep(number, tuple(values), np.array([ends[value] for value in values]), best_leads)


# ---- sampled updates


def _sample(case: Case, pull, seed: int, step_size: float) -> np.ndarray:
    """[runs, 3] policies after `UPDATES` plain gradient steps, each on a fresh group drawn from
    the behaviour policy. Every case sees the same draws.
    """
    numbers = jax.device_put(
        {number: np.full(RUNS, value) for number, value in case.numbers.items()}
    )
    key = jax.random.key(seed)
    keys = jax.random.split(key, RUNS)
    points = np.tile(np.log(BEHAVIOR) @ PLANE.T, (RUNS, 1))
    for step, arms in enumerate(_draws(seed)):
        if case.draws:
            keys = jax.random.split(jax.random.fold_in(key, step), RUNS)
        points = points + step_size * np.asarray(pull(numbers, points, arms, keys))
    return policies(points)


@functools.lru_cache(maxsize=1)
def _draws(seed: int) -> Int[np.ndarray, "updates runs responses"]:
    return np.random.default_rng(seed).choice(3, size=(UPDATES, RUNS, sum(COUNTS)), p=BEHAVIOR)
