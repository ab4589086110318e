"""Cases of fixed shapes, drawn by seed over the domain on which the objectives are stated."""

import dataclasses
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

# One shape, so that examples test values and not the compiler: interleaved groups of two, four and
# one, arbitrary ids, padding; enough tokens that a response reaches the edge of the domain,
# |S| = 700 with |d| <= 80 a token.
GROUPS = (7, 3, 7, 3, 3, 11, -1, 3)
TIME = 10

# The tests' time is the compiler's, so it is told not to optimise.
QUICK = {"compiler_options": {"xla_backend_optimization_level": 0}}
# Rewards lie on a grid on which the sums of a group are exact: the order of summation and a
# constant that is added then change no bit.
GRID = 2.0**20


@dataclass(frozen=True)
class Case:
    """A batch before advantages: arrays [responses, time] and [responses], and numbers for
    whichever objective wants them.

    `prox` and `ref` are log-probs too; `general` says that no two tokens and no two rewards stand
    equally high.
    """

    logprobs: np.ndarray
    old: np.ndarray
    mask: np.ndarray
    rewards: np.ndarray
    groups: np.ndarray
    tau: float = 0.7
    prox: np.ndarray | None = None
    ref: np.ndarray | None = None
    expert: np.ndarray | None = None
    staleness: np.ndarray | None = None
    general: bool = False

    replace = dataclasses.replace

    @property
    def live(self) -> np.ndarray:
        """[responses, time] the tokens that count."""
        return self.mask & (self.groups >= 0)[:, None]

    @property
    def moved(self) -> np.ndarray:
        """[responses, time] d = l - q, 0 where nothing counts."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.where(self.live, self.logprobs - self.old, 0)

    def fields(self) -> dict[str, np.ndarray | None]:
        """What `padded_batch` takes of it, but for what comes of the rewards."""
        return {
            "mask": self.mask,
            "groups": self.groups,
            "rewards": self.rewards,
            "old_logprobs": self.old,
            "ref_logprobs": self.ref,
            "prox_logprobs": self.prox,
            "expert": self.expert,
            "staleness": self.staleness,
        }


@dataclass(frozen=True)
class Domain:
    """Where cases come from: |d| <= edge a token, |S| <= total a response, |r| <= reward, and
    what garbage there is.
    """

    edge: float = 80.0
    total: float = 700.0
    reward: float = 1e6
    garbage: tuple[float, ...] = (np.nan, np.inf, -np.inf, 1e300, -1e300)
    dtype: type = np.float64


def _moves(rng, domain: Domain, mask: np.ndarray, values) -> np.ndarray:
    """d, up to the domain's edges; in some rows every token stands at one of them."""
    push = rng.integers(8, size=(len(mask), 1))
    moved = values(*mask.shape) * rng.choice([5e-4, 0.02, 0.3, 1.0, domain.edge], push.shape)
    moved = np.select([push == 6, push == 7], [domain.edge, -domain.edge], moved)
    # No two alike, and not beyond the edge.
    return _within_total(moved * (1 - 1e-3 * rng.random(mask.shape)), mask, domain.total)


def _within_total(moved: np.ndarray, mask: np.ndarray, total: float) -> np.ndarray:
    sums = np.where(mask, moved, 0).sum(1, keepdims=True)
    return moved * np.minimum(1, total / np.maximum(np.abs(sums), 1e-9))


def _rewards(rng, largest: float, general: bool, values) -> np.ndarray:
    count = len(GROUPS)
    level = values(count)
    kinds = [level > 0, 4 * level, largest * level, largest * 0.9 + level]
    rewards = kinds[rng.integers(4)].astype(float)
    if general:
        rewards = 0.99 * rewards + rng.uniform(-0.01, 0.01, count) * max(np.abs(rewards).max(), 1)
    for group in set(GROUPS):
        members = np.array(GROUPS) == group
        if not general and rng.random() < 0.3:
            rewards[members] = rewards[members][0]
    return np.round(rewards * GRID) / GRID


def case_of(seed: int, domain: Domain) -> Case:
    """Draws a case."""
    rng = np.random.default_rng(seed)
    groups, shape = np.array(GROUPS), (len(GROUPS), TIME)
    general = bool(rng.integers(2))

    def values(*shape: int) -> np.ndarray:
        """In [-1, 1]; where two may be alike, often 0 or an end."""
        drawn = rng.uniform(-1, 1, shape)
        return drawn if general else np.where(rng.random(shape) < 0.3, np.round(drawn), drawn)

    mask = rng.random(shape) < rng.choice([0, 0.25, 0.75, 1, 1])
    mask &= rng.random((len(groups), 1)) < rng.choice([0.75, 1])
    base = -rng.integers(8, size=shape) - general * rng.uniform(0.1, 0.9, shape)
    moved = _moves(rng, domain, mask, values) if general or rng.integers(8) else np.zeros(shape)
    # Log-probs are at most 0: the one that is lower has moved down.
    logprobs, old = base + np.minimum(moved, 0), base - np.maximum(moved, 0)
    apart = np.maximum(_moves(rng, domain, mask, values), logprobs)
    arrays = {
        "logprobs": logprobs,
        "old": old,
        "prox": old + _within_total(rng.random(shape) * moved, mask, domain.total),
        # Rounding does not leave the domain.
        "ref": logprobs - (1 - 1e-9) * _within_total(apart, mask, domain.total),
        "rewards": _rewards(rng, domain.reward, general, values),
        "staleness": rng.integers(5, size=len(groups)),
    }
    live = groups >= 0
    for name in arrays:
        counts = mask & live[:, None] if arrays[name].ndim == 2 else live
        garbage = rng.choice(domain.garbage) if name != "staleness" else 0
        arrays[name] = np.where(counts, arrays[name], garbage).astype(domain.dtype)
    return Case(
        **arrays,
        mask=mask,
        groups=groups,
        tau=10 ** rng.uniform(-3, 1),
        expert=rng.random(len(groups)) < 0.5,
        general=general,
    )


def cases(domain: Domain):
    return st.integers(0, 2**32 - 1).map(lambda seed: case_of(seed, domain))


WHOLE = cases(Domain())
SINGLE = cases(Domain(40.0, 80.0, 1e4, (np.nan, np.inf, -np.inf, 3e38, -3e38), np.float32))
# Near the policy that sampled: what is summed up is of one size there, so that sums may be compared.
CLOSE = Domain(3.0, 20.0, 10.0)
NEAR = cases(CLOSE)
