"""Random draws by address: the same (seed, purpose, position) gives the same numbers everywhere.

The generator is Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers:
as easy as 1, 2, 3", SC 2011, https://doi.org/10.1145/2063384.2063405), the one behind `jax.random`:
`fold_in` here gives, bit for bit, the key data of `jax.random.fold_in`. It is written once for
numpy and for jax arrays, so that a question drawn on the host and the same question drawn inside a
jitted graph are equal, and so that preparing a batch imports no accelerator library.
"""

from __future__ import annotations

import enum
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from grre_jax.errors import UsageError

if TYPE_CHECKING:  # jaxtyping imports jax, which a task must not need
    from jaxtyping import Array, Int, UInt32

# Version of the purposes' numbers: runs and studies that were begun with another one cannot be
# continued. Version 1, without a number, gave the draws of runs and of tasks the same keys.
VERSION = 2


@enum.unique
class Purpose(enum.IntEnum):
    """The purpose of a random draw, which is folded in after the seed.

    All draws below the root key of a seed have one of these purposes, so that no two of them share
    a key. Stored data and runs depend on the numbers: never change or reuse one.
    """

    INIT = 0  # weights of a new model
    QUESTION = 1  # questions of a task, by position
    CORRUPTION = 2  # wrong demonstrations of a task
    SPLIT = 3  # held-out questions; the seed is a property of the task, not of the run
    ORDER = 4  # order of the members of a stored set
    LORA = 5  # initial low-rank terms
    SAMPLE = 6  # prompts of `grre sample`
    REPLAY = 7  # the groups of earlier batches that a step trains on again
    MIX = 8  # the order of stored groups that are trained on beside the run's own
    EXPLORE = 9  # completions for training
    EVALUATE = 10  # completions of evaluations
    SHAPE = 11  # data shaping: the responses that RED-Drop drops
    WARM_START = 12
    STUDY = 13  # runs of the studies that compute in one graph, by their seed
    STUDY_START = 14  # warm starts of these studies, by their number
    FLAW = 15  # steps of demonstrations that follow a wrong rule
    ENVIRONMENT = 16  # seeds of environments, by position and attempt


# The constants of Threefry-2x32 in the paper. Four rounds have one tuple, the next four the other.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_POSITION_LIMIT = 2**32

Key = tuple[Any, Any]  # the two 32-bit words of a key, each an array of any (broadcastable) shape


def root_key(seed: int) -> Key:
    """Returns the key of a seed: its high and its low 32 bits, as in `jax.random.key`.

    Raises:
        UsageError: the seed is outside 0 to 2**63 - 1.
    """
    # NumPy integers would shift and wrap in their own width; other numbers are refused.
    seed = operator.index(seed)
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed: expected an integer from 0 to 2**63 - 1, got {seed}")
    # JAX takes the low half of a seed alone unless its 64-bit types are on.
    return np.array([seed >> 32], dtype=np.uint32), np.array([seed & 0xFFFFFFFF], dtype=np.uint32)


def fold_in(key: Key, data: UInt32[Any, "..."]) -> Key:
    """Returns the keys at addresses under a key, as `jax.random.fold_in` over whole arrays.

    Args:
        key: two words, broadcastable against `data`.
        data: [...] addresses, uint32 arrays of numpy or jax; no scalars, since numpy warns when
            they wrap around.

    Returns:
        Two uint32 arrays of the broadcast shape, of the library of `data`. They serve as a key and
        as 64 random bits.
    """
    # The zero word is of the shape and the library of `data`.
    return _threefry(key, (data * np.uint32(0), data))


def _threefry(key: Key, counter: Key) -> Key:
    first, second = key
    schedule = (first, second, first ^ second ^ np.uint32(_PARITY))
    left = counter[0] + schedule[0]
    right = counter[1] + schedule[1]
    # Five blocks of four rounds are the 20 rounds; words of the key are added after each block.
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            left = left + right
            right = (right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation))
            right = right ^ left
        left = left + schedule[(block + 1) % 3]
        right = right + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return left, right


def address(value: int) -> UInt32[np.ndarray, "1"]:
    """Returns one address as an array for `fold_in`."""
    return np.array([value], dtype=np.uint32)


def purpose_key(seed: int, purpose: Purpose) -> Key:
    """Returns the key above all draws of one purpose."""
    return fold_in(root_key(seed), address(purpose))


def check_positions(positions: Int[Any, "batch"] | list[int]) -> Any:
    """Returns positions of the prompt stream as uint32 addresses.

    Numpy arrays and sequences are checked; jax arrays, whose values a graph cannot inspect, are
    only cast.

    Raises:
        UsageError: a position is not an integer from 0 to 2**32 - 1.
    """
    # Arrays of NumPy 2 have `__array_namespace__` too. jax is not imported for a check of type.
    if not isinstance(positions, np.ndarray | np.generic) and hasattr(
        positions, "__array_namespace__"
    ):
        return positions.astype(np.uint32)
    array = np.atleast_1d(np.asarray(positions))
    # An empty list is an array of float64, which the check below would refuse.
    if array.size == 0:
        return array.astype(np.uint32)
    if array.dtype.kind not in "iu" or int(array.min()) < 0 or int(array.max()) >= _POSITION_LIMIT:
        raise UsageError(f"positions: expected integers from 0 to 2**32 - 1, got {positions!r}")
    return array.astype(np.uint32)


def shuffled(key: Key, size: int) -> Int[np.ndarray, "size"]:
    """Returns the integers 0 .. size-1 in the order of their 64 random bits under `key`."""
    high, low = fold_in(key, np.arange(size, dtype=np.uint32))
    # Stable, so that equal draws would have one order everywhere.
    return np.argsort((high.astype(np.uint64) << np.uint64(32)) | low, kind="stable")


class EpochStream:
    """A finite set as an endless stream: every epoch visits each member once, in its own order.

    `stream[position]` depends on the seed, the size and the position only.

    Args:
        seed: from 0 to 2**63 - 1.
        size: number of members, at least 1.
    """

    def __init__(self, seed: int, size: int):
        self.size = size
        self._key = purpose_key(seed, Purpose.ORDER)
        self._epoch: tuple[int, Any] = (-1, None)  # the epoch read last, and its order

    def __getitem__(self, position: int) -> int:
        """Returns the member (0 .. size-1) at a position; raises UsageError for a position outside
        0 to 2**32 - 1.
        """
        epoch, index = divmod(int(check_positions([position])[0]), self.size)
        # Streams are mostly read forwards: the order of one epoch is enough.
        cached_epoch, order = self._epoch
        if cached_epoch != epoch:
            order = shuffled(fold_in(self._key, address(epoch)), self.size)
            self._epoch = (epoch, order)
        return int(order[index])


def run_key(seed: int, purpose: Purpose) -> Array:
    """Returns the key above all draws of one purpose as a jax key (see `purpose_key`).

    Args:
        seed: from 0 to 2**63 - 1; every bit of it counts.
        purpose: of the draws.
    """
    # Here alone: tasks import this module, and load no jax.
    import jax

    # Of a fixed kind: draws of jax's other kinds depend on what else is drawn.
    words = np.concatenate(purpose_key(seed, purpose))
    return jax.random.wrap_key_data(words, impl="threefry2x32")
