"""Cases that hypothesis draws in fixed shapes, over the domain on which the objectives are
stated.
"""

from dataclasses import dataclass, replace

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
    beta: float = 0.3
    prox: np.ndarray | None = None
    ref: np.ndarray | None = None
    expert: np.ndarray | None = None
    staleness: np.ndarray | None = None
    general: bool = False

    def replace(self, **changes) -> "Case":
        return replace(self, **changes)

    @property
    def live(self) -> np.ndarray:
        """[responses, time] the tokens that count."""
        return self.mask & (self.groups >= 0)[:, None]

    @property
    def moved(self) -> np.ndarray:
        """[responses, time] d = l - q, 0 where nothing counts."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.where(self.live, self.logprobs - self.old, 0)

    def fields(self) -> dict[str, np.ndarray]:
        """What `padded_batch` takes of it, but for what comes of the rewards."""
        optional = {
            "ref_logprobs": self.ref,
            "prox_logprobs": self.prox,
            "expert": self.expert,
            "staleness": self.staleness,
        }
        given = {name: values for name, values in optional.items() if values is not None}
        rewards = {"rewards": self.rewards} if given else {}
        return {
            "mask": self.mask,
            "groups": self.groups,
            "old_logprobs": self.old,
            **rewards,
            **given,
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


# Arrays are drawn as byte strings: ten times as fast as one float at a time, and they shrink byte
# by byte towards zeros.
def _bytes(draw, *shape: int) -> np.ndarray:
    size = int(np.prod(shape))
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).reshape(shape)


def _signed(draw, *shape: int) -> np.ndarray:
    """In [-1, 1], with 0 and both ends."""
    return np.maximum(_bytes(draw, *shape).view(np.int8), -127) / 127.0


def _irrational(*shape: int) -> np.ndarray:
    """In [-1, 1], no two alike."""
    return 2 * (np.arange(1, np.prod(shape) + 1) * 2**0.5 % 1).reshape(shape) - 1


def _draw_rewards(draw, groups: np.ndarray, largest: float, general: bool) -> np.ndarray:
    level = _signed(draw, len(groups))
    kind = draw(st.sampled_from(["binary", "small", "negative", "huge", "offset", "mixed"]))
    kinds = {
        "binary": (level > 0).astype(float),
        "small": 4 * level,
        "negative": -np.abs(10 * level),
        "huge": largest * level,
        "offset": largest * 0.9 + level,
    }
    kinds["mixed"] = np.choose(_bytes(draw, len(groups)) % 5, list(kinds.values()))
    rewards = kinds[kind]
    if general:
        rewards = 0.99 * rewards + _irrational(len(groups)) * 0.01 * max(np.abs(rewards).max(), 1)
    else:
        alike = _bytes(draw, 8) % 3 == 1
        for place, group in enumerate(np.unique(groups)):
            members = groups == group
            rewards = np.where(members & alike[place], rewards[members][0], rewards)
    return np.round(rewards * GRID) / GRID


def _draw_moves(
    draw, shape: tuple[int, int], mask: np.ndarray, domain: Domain, general: bool
) -> np.ndarray:
    """d, up to the domain's edges; in some rows every token stands at one of them."""
    push = _bytes(draw, shape[0]) % 8
    moved = _signed(draw, *shape) * draw(st.sampled_from([1.0, domain.edge, 0.25]))
    moved = np.where(
        (push == 6)[:, None], domain.edge, np.where((push == 7)[:, None], -domain.edge, moved)
    )
    if general:
        moved = 0.999 * moved + 0.001 * _irrational(*shape)
    return _within_total(moved, mask, domain.total)


def _within_total(moved: np.ndarray, mask: np.ndarray, total: float) -> np.ndarray:
    sums = np.where(mask, moved, 0).sum(1, keepdims=True)
    return moved * np.minimum(1, total / np.maximum(np.abs(sums), 1e-9))


@st.composite
def _cases(draw, domain: Domain):
    groups, shape = np.array(GROUPS), (len(GROUPS), TIME)
    general = draw(st.booleans())
    bits = _bytes(draw, *shape)
    full, row = np.ones(shape, bool), (bits[:, :1] >> 1) % 4 > 0
    some = bits % 4 > 0
    mask = draw(
        st.sampled_from([some, full, row & full, row & some, ~some, row & ~some, full & False])
    )
    base = -(_bytes(draw, *shape) // 32).astype(float) - (
        0.5 + 0.4 * _irrational(*shape) if general else 0
    )
    moved = _draw_moves(draw, shape, mask, domain, general)
    # Log-probs are at most 0: the one that is lower has moved down.
    arrays = {"logprobs": base + np.minimum(moved, 0), "old": base - np.maximum(moved, 0)}
    share = _bytes(draw, *shape) / 255
    arrays["prox"] = arrays["old"] + _within_total(share * moved, mask, domain.total)
    apart = np.maximum(_draw_moves(draw, shape, mask, domain, general), arrays["logprobs"])
    arrays["ref"] = arrays["logprobs"] - (1 - 1e-9) * _within_total(
        apart, mask, domain.total
    )  # rounding does not leave the domain
    live = mask & (groups >= 0)[:, None]
    garbage = [domain.garbage[place] for place in _bytes(draw, 5) % len(domain.garbage)]
    arrays = {
        name: np.where(live, values, fill).astype(domain.dtype)
        for (name, values), fill in zip(arrays.items(), garbage, strict=False)
    }
    extra = _bytes(draw, len(groups))
    return Case(
        mask=mask,
        rewards=np.where(
            groups >= 0, _draw_rewards(draw, groups, domain.reward, general), garbage[-1]
        ).astype(domain.dtype),
        groups=groups,
        tau=10 ** draw(st.floats(-3, 1)),
        beta=draw(st.floats(-2, 2, allow_subnormal=False)),
        expert=extra % 2 == 1,
        staleness=(extra // 2 % 5).astype(domain.dtype),
        general=general,
        **arrays,
    )


WHOLE = _cases(Domain())
SINGLE = _cases(Domain(40.0, 80.0, 1e4, (np.nan, np.inf, -np.inf, 3e38, -3e38), np.float32))
# Near the policy that sampled: what is summed up is of one size there, so that sums may be compared.
NEAR = _cases(Domain(3.0, 20.0, 10.0))
