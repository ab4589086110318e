"""The three-arm bandit: where each objective takes a policy that learns from fixed data.

A softmax policy over three arms, rewards (0, .8, 1), data always from pi_b = (.3, .6, .1). Arm 3 is
the best, but arm 2 is drawn six times as often: plain REINFORCE ends at arm 2. The updates are the
library's own. docs/studies.md has the table that this file prints, and says how it is computed:

    python -m research.bandit [--algorithms NAME ...]
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grre_jax import objectives
from research import command_line, surrogate

BEHAVIOR, REWARDS, COUNTS, BEST = (0.3, 0.6, 0.1), (0.0, 0.8, 1.0), (3, 6, 1), 2
# Orthonormal rows, orthogonal to (1, 1, 1), which a softmax does not see.
PLANE = np.array([[-1.0, 1.0, 0.0], [-1.0, -1.0, 2.0]]) / np.sqrt([[2.0], [6.0]])
STARTS = (BEHAVIOR, (1 / 3,) * 3, *(0.97 * np.eye(3) + 0.01))
# Numbers without a default, and one that a group of ten cannot express.
CHOSEN: dict[str, dict[str, float]] = {
    "dr_grpo": {"constant_length": 1.0},
    "grpo_two_sided": {"delta": 4.0},
    "dro": {"dro_beta": 0.1},
    "gvpo": {"gvpo_beta": 0.1},
    "r2vpo": {"variance_coef": 0.1},
    "grpo_veto": {"veto_low": 0.5, "veto_high": 2.0},
    "clip_cov": {"covariance_fraction": 0.1},
    "kl_cov": {"covariance_fraction": 0.1},
}
# Beside the defaults: the paper's setting, and variants that differ where a response is one token.
FURTHER: dict[str, dict[str, Any]] = {
    "rec_oneside_nois": {"epsilon_low": 0.6, "epsilon_high": 2.0},
    "opmd": {"variant": "openkimi"},
    "opmd_logavgexp": {"variant": "leave_one_out"},
    "cispo": {"variant": "epsilon"},
    "chord": {"variant": "phi"},
    "reinforce_pp": {"variant": "returns"},
}
SURROGATE, LEFT_OUT = "surrogate", "distill"  # the second reads no reward
RESCALING = ("std_epsilon", "constant_length")  # they change no direction here
TRAJECTORIES, ROUNDS = 64, 2  # flows that are followed at once; rounds of bisection
TITLES = ("algorithm", "ends at", "how", "leads", "other starts", "arm 3 leads for")
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class Case(NamedTuple):
    """An objective: its label, its name, its structural options and its numbers."""

    label: str
    name: str
    structure: Mapping[str, str]
    numbers: Mapping[str, float]


def cases(names: Sequence[str] | None = None) -> list[Case]:
    """Returns the algorithms of these names; all, and both forms of the surrogate, by default."""
    found = []
    for name in names or (*objectives.algorithms(), SURROGATE):
        if name == SURROGATE:
            forms = ("pairwise", "variance")
            found += [Case(f"{name} {f} tau=0.1", name, {"form": f}, {"tau": 0.1}) for f in forms]
            continue
        for further in [{}, FURTHER[name]] if name in FURTHER else [{}] * (name != LEFT_OUT):
            options = CHOSEN.get(name, {}) | further
            numbers = objectives.algorithm(name, **options).hyperparameters
            structure = {key: value for key, value in options.items() if isinstance(value, str)}
            given = [f"{key}={options[key]:g}" for key in options if key not in structure]
            label = " ".join([name, *structure.values(), *given])
            found.append(Case(label, name, structure, {k: float(x) for k, x in numbers.items()}))
    return found


def loss(case: Case, numbers: Mapping[str, Any], logits: Any, arms: Any, key: Any) -> Any:
    """Returns the loss [] of logits [3] on arms [responses], and on an expert's if it needs one."""
    logprobs, behavior = jax.nn.log_softmax(logits), jnp.log(jnp.array(BEHAVIOR))
    if case.name == SURROGATE:
        data = (logprobs[arms], behavior[arms], jnp.array(REWARDS)[arms], jnp.zeros_like(arms))
        return surrogate.surrogate_loss(*data, **case.structure, tau=numbers["tau"])
    objective = objectives.algorithm(case.name, **case.structure, **numbers)
    experts = int("expert" in objective.requires)
    arms = jnp.concatenate([arms, jnp.full(experts, BEST, arms.dtype)])
    expert = jnp.arange(arms.size) >= arms.size - experts
    groups, rewards = expert.astype(jnp.int32), jnp.array(REWARDS)[arms]
    logprobs, behavior, ones = logprobs[arms, None], behavior[arms, None], jnp.ones(arms.size)
    shaped = objectives.shape_data(objective, rewards, groups, key, ones, {"reward": rewards})
    batch = objectives.padded_batch(
        advantages=shaped.advantages,
        dropped=shaped.dropped,
        rewards=rewards,
        mask=jnp.ones((arms.size, 1), bool),
        groups=groups,
        old_logprobs=behavior,
        prox_logprobs=behavior,
        ref_logprobs=behavior,
        expert=expert,
        staleness=ones,
    )
    return objectives.policy_loss(objective, logprobs, batch)[0]


# ---- the flow of the expected update. Only orbits matter, so each step has a chosen length.

STEPS, SLOWING = 6144, 5500  # the floor shrinks after the second
LONGEST, FLOOR, SETTLED, PASSED = 0.05, 1e-3, 1e-7, 1e-5  # lengths of steps
SLIDE = 100.0  # a step along a jump, in floors
TURN = 0.95  # a step is halved where the cosine of the field before and after is below it
SHIFT, NOTHING = 1e-6, 1e-200  # of the Jacobian's differences; a speed that is no gradient
EDGE = 1e-8  # a probability below which steps become long, and a constant field ends the flow


_norm = functools.partial(jnp.linalg.norm, axis=-1)


def _unit(x: Any) -> Any:
    return x / jnp.maximum(_norm(x), NOTHING)[:, None]


def _implicit(value: Any, jacobian: Any, length: Any) -> Any:
    """(I - h J)^-1 h f, of at most a length; J's growth bounds h: unstable points repel."""
    (a, b), (c, d) = jnp.moveaxis(jacobian, 0, -1)
    growth = (a + d) / 2 + jnp.sqrt(jnp.maximum((a - d) ** 2 / 4 + b * c, 0))
    steepest = jnp.maximum(jnp.abs(jacobian).max((-2, -1)), NOTHING)
    h = jnp.minimum(length / jnp.maximum(_norm(value), NOTHING), 1e100 / steepest)
    h = jnp.minimum(h, 0.5 / jnp.maximum(growth, NOTHING))
    a, b, c, d = 1 - h * a, -h * b, -h * c, 1 - h * d
    x, y = h * value[:, 0], h * value[:, 1]
    step = jnp.stack([d * x - b * y, a * y - c * x], axis=-1) / (a * d - b * c)[:, None]
    return step * jnp.minimum(1, length / jnp.maximum(_norm(step), NOTHING))[:, None]


def follow(field: Any, starts: Any) -> tuple[Any, Any]:
    """Follows du/dt = field(u), of [3 n, 2] points, from starts [n, 2]; returns the ends, and True
    where there is no gradient [n]. Steps across a jump are halved; then the orbit slides along it.
    """

    def linearised(points: Any) -> tuple[Any, Any]:
        shifts = SHIFT * jnp.array([[[0.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
        value, right, up = field((points + shifts).reshape(-1, 2)).reshape(3, -1, 2)
        return value, jnp.stack([right - value, up - value], axis=-1) / SHIFT

    def advance(state: Any) -> Any:
        n, point, before, jacobian, trial, slides, beyond, length, floor, peak, flat = state
        value, slope = linearised(trial)
        newton = _norm(trial - point) <= 0.5 * length
        across = (jnp.sum(_unit(value) * _unit(before), -1) < TURN) & ~newton & ~slides
        stopped = (_norm(value) <= NOTHING) & (_norm(before) > 1e-6 * peak) & (floor > SETTLED)
        strange = [_norm(value - x) > 0.2 * _norm(x) for x in (before, beyond)]
        passed = slides & strange[0] & strange[1] & (floor > PASSED)
        shortened = stopped | passed
        accepted = ~shortened & ~(across & (length > floor))
        point = jnp.where(accepted[:, None], trial, point)
        now = jnp.where(accepted[:, None], value, before)
        jacobian = jnp.where(accepted[:, None, None], slope, jacobian)
        least = jax.nn.softmax(point @ PLANE).min(-1)
        longer = jnp.minimum(1.3 * length, jnp.where(least < EDGE, 1.0, LONGEST))
        floor = jnp.where(shortened, floor / 2, jnp.where(across, floor, 1.01 * floor))
        floor = jnp.minimum(floor, FLOOR * 0.5 ** (jnp.maximum(n - SLOWING, 0) // 32))
        shorter = jnp.where(shortened, floor, jnp.maximum(length / 2, floor))
        length = jnp.where(accepted, longer, shorter)
        step = _implicit(now, jacobian, length)
        cross = _unit(before - now)
        inward, back = jnp.sum(before * cross, -1), jnp.sum(now * cross, -1)
        along = before - inward[:, None] * cross
        meets = (inward > 0) & (back < 0) & (_norm(along) > NOTHING) & (_norm(now) > NOTHING)
        slides = accepted & across & meets
        step = jnp.where(slides[:, None], SLIDE * floor[:, None] * _unit(along), step)
        peak = jnp.maximum(peak, _norm(now))
        same = accepted & (_norm(now - before) < 1e-9 * _norm(before)) & (least < EDGE**12)
        same |= _norm(now) <= 1e-10 * peak
        done = (least < EDGE) & same
        moves = jnp.isfinite(step).all(-1) & ~done
        trial = jnp.where(moves[:, None], point + step, point)
        beyond = jnp.where(slides[:, None], before, beyond)
        length = jnp.where(slides, floor, length)
        flat = flat | ((_norm(now) <= NOTHING) & ~newton)
        n += 1
        return n, point, now, jacobian, trial, slides, beyond, length, floor, peak, flat

    value, jacobian = linearised(starts)
    no, floor = jnp.zeros(len(starts), bool), jnp.full(len(starts), FLOOR)
    trial = starts + _implicit(value, jacobian, floor)
    state = (0, starts, value, jacobian, trial, no, value, floor, floor, _norm(value), no)
    moves = lambda x: (x[0] < STEPS) & jnp.any(_norm(x[4] - x[1]) > 1e-10)  # noqa: E731
    state = jax.lax.while_loop(moves, advance, state)
    return state[1], state[-1]


def study(case: Case) -> list[str]:
    """Returns a row of the table: ends of the expected update, swept over each number."""
    with jax.enable_x64(True):
        slope = jax.grad(functools.partial(loss, case), argnums=1)
        pull = jax.vmap(lambda n, u, arms, key: -PLANE @ slope(n, u @ PLANE, arms, key))
        arms = np.tile(np.repeat(np.arange(3), COUNTS), (3 * TRAJECTORIES, 1))
        keys = jax.random.split(jax.random.key(0), 3 * TRAJECTORIES)

        @functools.partial(jax.jit, compiler_options=QUICK)
        def flow(numbers: Any, starts: Any) -> Any:
            tiled = {name: jnp.tile(values, 3) for name, values in numbers.items()}
            return follow(lambda points: pull(tiled, points, arms, keys), starts)

        def settle(pairs: Sequence[tuple[Mapping[str, float], Any]]) -> tuple[Any, Any]:
            ends, flat = [], []
            for first in range(0, len(pairs), TRAJECTORIES):
                some = [*pairs[first : first + TRAJECTORIES], *[pairs[-1]] * TRAJECTORIES]
                given = [case.numbers | numbers for numbers, _ in some[:TRAJECTORIES]]
                numbers = {name: np.array([x[name] for x in given]) for name in case.numbers}
                starts = np.log([start for _, start in some[:TRAJECTORIES]]) @ PLANE.T
                points, still = flow(numbers, starts)
                ends.append(jax.nn.softmax(points @ PLANE))
                flat.append(still)
            return np.concatenate(ends)[: len(pairs)], np.concatenate(flat)

        ends, flat = settle([({}, start) for start in STARTS])
        leads: dict[str, dict[float, bool]] = {n: {} for n in case.numbers if n not in RESCALING}
        tried = [(number, value) for number in leads for value in grid(case, number)]
        for _ in range(1 + ROUNDS):
            if not tried:
                break
            found, _ = settle([({number: value}, BEHAVIOR) for number, value in tried])
            for (number, value), end in zip(tried, found, strict=True):
                leads[number][value] = bool(np.argmax(end) == BEST)
            gaps = [(n, *gap) for n, values in leads.items() for gap in changes(values)]
            count = max(1, TRAJECTORIES // max(1, len(gaps))) + 2
            tried = [
                (number, float(value))
                for number, low, high in gaps
                for value in (np.geomspace if low > 0 else np.linspace)(low, high, count)[1:-1]
            ][:TRAJECTORIES]
    kind = "no gradient" if flat[0] else "interior"
    kind = "edge" if ends[0].min() < 1e-6 else kind
    kind = "corner" if ends[0].max() > 1 - 1e-4 else kind
    shown = " ".join("1" if share >= 0.9995 else f"{share:.3f}"[1:] for share in ends[0])
    first, *others = (str(np.argmax(end) + 1) for end in ends)
    ranges = [text for number, values in leads.items() for text in strengths(number, values)]
    starts = "same" if np.abs(ends - ends[0]).max() < 5e-3 else " ".join(others)
    return [case.label, f"({shown})", kind, f"arm {first}", starts, "; ".join(ranges) or "-"]


def grid(case: Case, number: str) -> list[float]:
    """Returns the values of a sweep that the library takes; also 0 and negative ones."""
    ladder = (abs(case.numbers[number]) or 1.0) * 10 ** (np.arange(-8, 9) / 4)
    if case.name == SURROGATE:
        return ladder.tolist()
    values = []
    for value in sorted({*ladder.tolist(), *(-ladder).tolist(), 0.0, case.numbers[number]}):
        with contextlib.suppress(ValueError):
            numbers = {**case.numbers, number: value}
            objectives.algorithm(case.name, **case.structure, **numbers)
            values.append(value)
    return values


def changes(leads: Mapping[float, bool]) -> list[tuple[float, float]]:
    """Returns neighbouring values of which arm 3 leads at one."""
    return [pair for pair in itertools.pairwise(sorted(leads)) if leads[pair[0]] != leads[pair[1]]]


def strengths(number: str, leads: Mapping[float, bool]) -> list[str]:
    """Returns the ranges of a number in which arm 3 leads, as "tau < 0.175"."""
    bounds: list[float] = []
    for low, high in changes(leads):
        middle = (low + high) / 2
        # Two changes within a percent are none: the last digits of a flow decide there.
        if bounds and middle - bounds[-1] <= 0.01 * abs(middle):
            bounds.pop()
        else:
            bounds.append(middle)
    shown, first = [f"{bound:.3g}" for bound in bounds], int(not (leads and leads[min(leads)]))
    texts = [f"{x} < {number} < {y}" for x, y in itertools.pairwise(shown)]
    texts = [f"{number} < {shown[0]}", *texts, f"{number} > {shown[-1]}"] if shown else []
    return texts[first::2] if shown else [f"every {number}"] * (leads != {} and not first)


def main(words: Sequence[str] | None = None) -> int:
    """Prints the table; returns the exit status."""
    parser = command_line.make_parser("bandit", __doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="all if not given")
    known = parser.parse_args(words)
    try:
        chosen = cases(known.algorithms)
    except ValueError as error:
        parser.error(str(error))
    with ThreadPoolExecutor(2) as pool:  # most of the time goes into compiling
        for cells in itertools.chain([TITLES], pool.map(study, chosen)):
            print("{:48}{:18}{:13}{:7}{:14}{}".format(*cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
