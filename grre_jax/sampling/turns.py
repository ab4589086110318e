"""Sampling of trajectories: turns of the policy with an environment's observations between them.

A trajectory that has ended its turn keeps its keys and values while its observation is on the way;
other trajectories are decoded in its place. The observation is then prefilled behind them, and it
goes on. A prompt is prefilled once for all its samples.

Every draw is addressed by (key, position of the prompt, attempt, sample, index of the token behind
the prompt), observations counted. So with float32 activations a trajectory depends on its
environment's answers, but not on their order, on the rows beside it or on the number of devices;
its first turn is the completion of `sample`. In bfloat16 rounding depends on the rows.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from grre_jax import random_streams
from grre_jax.models.config import ModelConfig
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.call import LEAST_SLOTS, SHRINK
from grre_jax.sampling.decoding import trajectories as programs
from grre_jax.sampling.decoding.slots import KEY_WORDS, NONE, RUNNING, SCORES, STOPPED
from grre_jax.sampling.decoding.weights import Weights, prepared
from grre_jax.sampling.distributions.distribution import SamplingDistribution
from grre_jax.sampling.prompt_batch import bucket, checked_key, pad_prompts, padded_ends, whole
from grre_jax.sampling.sampler import check_decode
from grre_jax.sampling.stop_strings import StopStrings
from grre_jax.sampling_params import SamplingParams

STEPS = 32  # most decode steps between two looks at the answers
# Slots per row if not given: three of four trajectories may wait for their environments.
SLOTS_PER_ROW = 4
# Columns for new tokens behind what rows were gathered with, times the steps of a program.
ROOM = 4
FIRST_COLUMNS = 256  # own tokens that a slot has room for at first
# Lengths that observations are padded to; longer ones are prefilled in pieces.
PIECES = (16, 64, 256)
# One of so many rows that are decoded: once these have ended their turns, decoding stops, so that
# environments are asked and others take their rows.
ENDED_SHARE = 8


class Address(NamedTuple):
    """A prompt's part of the address of its draws.

    Attributes:
        position: of the prompt.
        attempt: another one gives fresh draws.
    """

    position: int
    attempt: int = 0


class Opening(NamedTuple):
    """A prompt from which trajectories begin.

    Attributes:
        address: of their draws.
        prompt: token ids; empty for the model's beginning-of-text token.
        samples: numbers of the trajectories, as range(K); not empty.
    """

    address: Address
    prompt: Sequence[int]
    samples: Sequence[int]


class Limits(NamedTuple):
    """Limits of a trajectory; that of a turn is `SamplingParams.max_new_tokens`.

    Attributes:
        turns: most turns, at least 1.
        tokens: most tokens behind the prompt, observations included; at least 1.
    """

    turns: int
    tokens: int


class Turn(NamedTuple):
    """Tokens that the policy sampled without interruption.

    Attributes:
        start, end: where they are in the trajectory's tokens.
        stopped: a stop token or stop string ended them, not a limit.
    """

    start: int
    end: int
    stopped: bool


class Trajectory(NamedTuple):
    """A finished trajectory.

    Attributes:
        address, sample: of its draws.
        tokens: [tokens] token ids behind the prompt.
        mask: [tokens] True for sampled ones, False for observations.
        logprobs: [tokens] log-prob of each in nats, by "sampling", "behavior" and "policy", as
            `Samples` has them; 0 for observations.
        turns: its turns.
        reason: "done" if the environment ended it, else the limit: "turns" or "tokens".
    """

    address: Address
    sample: int
    tokens: Int[np.ndarray, " tokens"]
    mask: Bool[np.ndarray, " tokens"]
    logprobs: dict[str, Float[np.ndarray, " tokens"]]
    turns: tuple[Turn, ...]
    reason: str


Respond = Callable[[Address, int, int, list[int]], "futures.Future[Sequence[int] | None]"]


def sample_trajectories(
    model: Transformer | Weights,
    openings: Iterable[Opening],
    respond: Respond,
    limits: Limits,
    params: SamplingParams,
    *,
    key: Array,
    rows: int,
    slots: int | None = None,
    eos_ids: Sequence[int] | None = None,
    cache_dtype: str | None = None,
    decode: Callable[[list[int]], str] | None = None,
    prompt_tokens: int | None = None,
    wait: bool = False,
) -> Iterator[Trajectory]:
    """Samples trajectories of each opening.

    Args:
        model: the policy, or `prepared(model)` to share its preparation between calls.
        openings: where trajectories begin.
        respond: called with (address, sample, number of the turn, its tokens) whenever a turn ends,
            the last one included, in the thread that iterates. Its future gives the token ids of an
            observation, of which there may be none, or None if the trajectory is over. An
            observation beyond a limit is dropped.
        limits: of a trajectory.
        params: of the distribution of a token; `max_new_tokens` is the limit of a turn.
        key: JAX random key of the kind "threefry2x32", which is JAX's default.
        rows: trajectories decoded side by side, over all devices.
        slots: trajectories with a KV cache, over all devices; four times `rows` if None.
        eos_ids: tokens that end a turn; the model's own if None.
        cache_dtype: "float32" or "bfloat16" for the KV cache; the activations' if None.
        decode: the tokenizer's, from token ids to text; needed with params.stop, which ends turns.
        prompt_tokens: room for a prompt; that of the longest if None.
        wait: decode on only when all answers have come. What decodes side by side, and so the
            rounding of log-probs, does not depend on their time then.

    Returns:
        An iterator over the trajectories, in the order in which they end.

    Raises:
        ValueError: an argument outside its domain; the message names it.

    Examples:
        Two trajectories, each of two turns with an observation of two tokens between them:

        >>> from concurrent.futures import Future
        >>> import jax
        >>> from grre_jax import models, sampling
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4,
        ... )
        >>> def respond(address, sample, turn, tokens):
        ...     answer = Future()
        ...     answer.set_result([1, 2] if turn == 0 else None)
        ...     return answer
        >>> trajectories = sampling.sample_trajectories(
        ...     models.init(config),
        ...     [sampling.Opening(sampling.Address(position=0), prompt=[3, 4], samples=range(2))],
        ...     respond,
        ...     sampling.Limits(turns=5, tokens=32),
        ...     sampling.SamplingParams(max_new_tokens=3),
        ...     key=jax.random.key(0),
        ...     rows=2,
        ... )
        >>> for trajectory in sorted(trajectories, key=lambda trajectory: trajectory.sample):
        ...     print(trajectory.sample, trajectory.reason, trajectory.mask.astype(int))
        0 done [1 1 1 0 0 1 1 1]
        1 done [1 1 1 0 0 1 1 1]
    """
    check_decode(params, decode)
    if jax.process_count() > 1 and meshes.current() is not None:
        raise ValueError(
            "trajectories cannot be sampled on a mesh of several processes, whose environments"
            " answer at different times: give each process a mesh of its own devices"
        )
    rows = whole("rows", rows, 1)
    slots = SLOTS_PER_ROW * rows if slots is None else whole("slots", slots, rows)
    weights = model if isinstance(model, Weights) else prepared(model)
    openings = list(openings)
    if not openings:
        return iter(())
    starts, room = _starts(openings, weights.model.config, prompt_tokens, key)
    ends = padded_ends(weights.model.config.eos_ids if eos_ids is None else eos_ids)
    stops = StopStrings(params.stop, decode) if decode else None
    call = _Call(weights, starts, respond, limits, params, stops, ends, wait)
    call.allocate(rows, slots, room, weights.cache_dtype(cache_dtype))
    return call.trajectories()


@dataclasses.dataclass(eq=False)
class _Start:
    """A prompt, the samples that have not begun with their keys, its slot, and how many run."""

    address: Address
    prompt: list[int]
    samples: collections.deque[tuple[int, UInt32[np.ndarray, " words"]]]
    slot: int = NONE
    running: int = 0


def _starts(
    openings: list[Opening], config: ModelConfig, prompt_tokens: int | None, key: Array
) -> tuple[list[_Start], int]:
    """Returns the openings, checked and with their keys, and the room for a prompt."""
    prompts, lengths = pad_prompts([opening.prompt for opening in openings], prompt_tokens, config)
    root = np.asarray(jax.random.key_data(checked_key(key)))
    starts = []
    for opening, prompt, length in zip(openings, prompts, lengths, strict=True):
        samples = np.array(opening.samples, np.uint32)
        words: random_streams.Key = (root[:1], root[1:])
        # In the order of `completion_keys`, so that the first turn draws what `sample` does.
        for data in (*(random_streams.address(n % 2**32) for n in opening.address), samples):
            words = random_streams.fold_in(words, data)
        keyed = collections.deque(zip(samples.tolist(), np.stack(words, axis=1), strict=True))
        starts.append(_Start(opening.address, prompt[:length].tolist(), keyed))
    return starts, bucket(prompts.shape[1])


@dataclasses.dataclass(eq=False)
class _Running:
    """A trajectory that has begun. Of its prompt's last token and its own ones, `filled` are
    stored.
    """

    start: _Start
    sample: int
    words: UInt32[np.ndarray, " words"]
    slot: int
    filled: int = 0
    tokens: list[int] = dataclasses.field(default_factory=list)
    scores: list[Float[np.ndarray, "three some"]] = dataclasses.field(default_factory=list)
    turns: list[Turn] = dataclasses.field(default_factory=list)
    turn_start: int = 0
    row: int = NONE
    joined: int = 0

    def finished(self, reason: str) -> Trajectory:
        """Returns the trajectory."""
        mask = np.zeros(len(self.tokens), bool)
        for turn in self.turns:
            mask[turn.start : turn.end] = True
        return Trajectory(
            self.start.address,
            self.sample,
            np.array(self.tokens, np.int32),
            mask,
            dict(zip(SCORES, np.concatenate(self.scores, axis=1), strict=True)),
            tuple(self.turns),
            reason,
        )


@dataclasses.dataclass
class _Shard:
    """The part of a call whose rows and slots one group of devices has.

    Attributes:
        starts: prompts with samples that have not begun.
        slots, prompt_slots: free ones.
        rows: the trajectories that are decoded.
        ready: those that could be.
    """

    starts: collections.deque[_Start]
    slots: list[int]
    prompt_slots: list[int]
    rows: list[_Running] = dataclasses.field(default_factory=list)
    ready: collections.deque[_Running] = dataclasses.field(default_factory=collections.deque)

    def begin(self) -> list[_Start]:
        """Makes trajectories of the next samples ready, as slots are free; returns their prompts
        that are not stored yet.
        """
        new = []
        while self.slots and self.starts and (self.starts[0].slot != NONE or self.prompt_slots):
            start = self.starts[0]
            if start.slot == NONE:
                start.slot = self.prompt_slots.pop()
                new.append(start)
            self.ready.append(_Running(start, *start.samples.popleft(), self.slots.pop()))
            start.running += 1
            if not start.samples:
                self.starts.popleft()
        return new

    def end(self, running: _Running) -> None:
        """Frees the slot of a trajectory, and its prompt's if it was the last."""
        start = running.start
        start.running -= 1
        self.slots.append(running.slot)
        if not start.running and not start.samples:
            self.prompt_slots.append(start.slot)


@dataclasses.dataclass
class _Call:
    """A call of `sample_trajectories`."""

    weights: Weights
    starts: list[_Start]
    respond: Respond
    limits: Limits
    params: SamplingParams
    stops: StopStrings | None
    eos: Int[Array, " ends"]
    wait: bool

    def __post_init__(self):
        self.config = self.weights.model.config
        self.distribution = SamplingDistribution.of(self.params)
        self.waiting: list[tuple[futures.Future, _Shard, _Running]] = []

    def allocate(self, rows: int, slots: int, prompt_tokens: int, dtype: str) -> None:
        """Divides rows and slots among shards and makes their caches."""
        mesh = meshes.current()
        starts = self.starts
        shards = 1 if mesh is None else meshes.row_devices(mesh)
        each = -(-len(starts) // shards)
        most = max(sum(len(start.samples) for start in starts[s::shards]) for s in range(shards))
        rows, slots = (min(-(-count // shards), most) for count in (rows, slots))
        # Enough that prompts whose last samples still run do not keep others waiting.
        prompts = min(each, slots, -(-4 * slots * each // most))
        self.rows = rows
        self.gathered = (0, 0)
        self.start = 0
        self.caches = []
        self.shards = [
            _Shard(collections.deque(starts[s::shards]), list(range(slots)), list(range(prompts)))
            for s in range(shards)
        ]
        columns = min(FIRST_COLUMNS, bucket(self.limits.tokens + PIECES[0]))
        self.prompts = programs.empty(self.config, shards * prompts, prompt_tokens, dtype)
        self.own = programs.empty(self.config, shards * slots, columns, dtype)

    def trajectories(self) -> Iterator[Trajectory]:
        """Samples; yields the trajectories as they end."""
        while True:
            # All at once: the slots that they free are given to new trajectories in the next line.
            finished = list(self._answers())
            self._store_prompts([shard.begin() for shard in self.shards])
            for shard in self.shards:
                while shard.ready and len(shard.rows) < self.rows:
                    shard.rows.append(shard.ready.popleft())
            self._store_observations()
            drawn = self._decode() if any(shard.rows for shard in self.shards) else None
            yield from finished  # while the device decodes
            if drawn is not None:
                self._take(*jax.device_get(drawn))
            elif self.waiting:
                pending = [future for future, _, _ in self.waiting]
                futures.wait(pending, return_when=futures.FIRST_COMPLETED)
            else:
                return

    def _answers(self) -> Iterator[Trajectory]:
        """Takes the answers that have come; yields the trajectories that they end."""
        queue = self.waiting
        self.waiting = []
        for future, shard, running in queue:
            if not (self.wait or future.done()):
                self.waiting.append((future, shard, running))
                continue
            answer = future.result()
            reason = ""
            if answer is None:
                reason = "done"
            elif len(running.turns) == self.limits.turns:
                reason = "turns"
            elif len(running.tokens) + len(answer) >= self.limits.tokens:
                reason = "tokens"  # at the limit no token is left for a turn
            if reason:
                shard.end(running)
                yield running.finished(reason)
            else:
                if not all(0 <= token < self.config.vocab_size for token in answer):
                    raise ValueError(
                        f"the observation after turn {len(running.turns) - 1} of sample"
                        f" {running.sample} at {running.start.address}: expected token ids from 0"
                        f" to {self.config.vocab_size - 1}, got {answer!r:.100}"
                    )
                running.tokens += answer
                running.scores.append(np.zeros((len(SCORES), len(answer)), np.float32))
                running.turn_start = len(running.tokens)
                shard.ready.append(running)

    def _store_prompts(self, new: list[list[_Start]]) -> None:
        """Prefills prompts, by shard."""
        for chunk in self._together(new):
            shape = (len(chunk), len(chunk[0]))
            tokens = np.zeros((*shape, self.prompts[0].tokens), np.int32)
            lengths = np.zeros(shape, np.int32)
            slots = np.full(shape, NONE, np.int32)
            for at, start in _entries(chunk):
                stored = start.prompt[:-1]  # `decode` computes the last token and draws from it
                tokens[at][: len(stored)] = stored
                lengths[at] = len(stored)
                slots[at] = start.slot
            self.prompts = programs.prefill_prompts(
                self.weights, self.prompts, tokens, lengths, slots
            )

    def _store_observations(self) -> None:
        """Prefills what the rows have not stored, a piece at a time."""
        while True:
            remainder = [
                [r for r in shard.rows if r.filled < len(r.tokens)] for shard in self.shards
            ]
            if not any(remainder):
                return
            most = max(len(r.tokens) - r.filled for chunk in remainder for r in chunk)
            length = next((size for size in PIECES if size >= most), PIECES[-1])
            for chunk in self._together(remainder):
                self._make_room(max(r.filled for _, r in _entries(chunk)) + length)
                rows = self._rows(chunk)
                tokens = np.zeros((*rows.slot.shape, length), np.int32)
                for at, running in _entries(chunk):
                    end = min(running.filled + length, len(running.tokens))
                    # `filled` counts the prompt's last token first, so the list begins with it.
                    stored = [running.start.prompt[-1], *running.tokens][running.filled : end]
                    tokens[at][: len(stored)] = stored
                    running.filled = end
                self.own = programs.prefill_observations(
                    self.weights, self.prompts, self.own, rows, tokens
                )

    def _together(self, by_shard: list[list[Any]]) -> Iterator[list[list[Any]]]:
        """Yields parts of every shard's list, of 1 or as many as end together, padded with None."""
        many = max(4, self.rows // ENDED_SHARE)
        for first in range(0, max(map(len, by_shard)), many):
            chunk = [items[first : first + many] for items in by_shard]
            size = 1 if max(map(len, chunk)) == 1 else many
            yield [items + [None] * (size - len(items)) for items in chunk]

    def _decode(self) -> tuple[Array, Array]:
        """Decodes some steps; returns what was drawn, on the device."""
        running = [shard.rows for shard in self.shards]
        most = max(map(len, running))
        width = self.rows
        while width >= LEAST_SLOTS and most <= width // SHRINK:
            width //= SHRINK  # a step of many rows costs as much if few of them still decode
        steps = min(STEPS, bucket(self.params.max_new_tokens))
        self._make_room(max(r.filled for r in itertools.chain(*running)) + steps)
        room = ROOM * steps
        shape = (width, self.own[0].tokens)
        # Every step takes a column of the room in all rows; once it is full, all are gathered
        # again.
        afresh = shape != self.gathered or self.start + steps > room
        if afresh:
            self.gathered = shape
            self.start = 0
            for r in itertools.chain(*running):
                r.row = NONE
        new = [_seated(chunk, width, self.start) for chunk in running]
        by_row = [[None] * width for _ in running]
        for (s, _), r in _entries(running):
            by_row[s][r.row] = r
        rows = self._rows(by_row)
        gathered = partial(programs.gathered, self.config, room, self.prompts, self.own)
        if afresh:
            self.caches = gathered(rows)
        elif any(new):
            for chunk in self._together(new):
                at = np.full((len(chunk), len(chunk[0])), width, np.int32)
                for where, r in _entries(chunk):
                    at[where] = r.row
                joining = gathered(self._rows(chunk))
                self.caches = programs.replaced(self.caches, joining, at)
        self.own, self.caches, integers, scores = programs.decode(
            steps,
            self.weights,
            self.prompts,
            self.own,
            self.caches,
            rows,
            np.int32(self.start),
            self.distribution,
            self.eos,
            np.int32(max(1, sum(map(len, running)) // ENDED_SHARE)),
        )
        return integers, scores

    def _make_room(self, tokens: int) -> None:
        """Makes slots long enough for so many tokens."""
        size = self.own[0].tokens
        while size < tokens:
            size *= 2
        if size > self.own[0].tokens:
            for layer, kept in enumerate(self.own):  # so that one layer's old and new exist at once
                self.own[layer] = programs.grown(kept, size)

    def _rows(self, chosen: list[list[_Running | None]]) -> programs.Rows:
        """Returns the rows of a program."""
        shape = (len(chosen), len(chosen[0]))
        slot, prompt_slot, before, filled, token, allowed, joined = np.zeros((7, *shape), np.int32)
        keys = np.zeros((*shape, KEY_WORDS), np.uint32)
        slot[:] = NONE
        for at, r in _entries(chosen):
            slot[at] = r.slot
            prompt_slot[at] = r.start.slot
            filled[at] = r.filled
            before[at] = len(r.start.prompt) - 1
            keys[at] = r.words
            token[at] = r.tokens[-1] if r.tokens else r.start.prompt[-1]
            in_turn = len(r.tokens) - r.turn_start
            joined[at] = r.joined
            room = self.limits.tokens - len(r.tokens)
            allowed[at] = min(self.params.max_new_tokens - in_turn, room)
        return programs.Rows(slot, prompt_slot, before, filled, token, allowed, joined, keys)

    def _take(self, integers: np.ndarray, scores: np.ndarray) -> None:
        """Appends the tokens drawn, and requests the answers to turns that ended."""
        # The loop may stop early: a step was made if a row drew a token in it.
        self.start += int((integers[:, 1] != NONE).any((1, 2)).sum())
        for s, shard in enumerate(self.shards):
            decoded = shard.rows
            shard.rows = []
            for running in decoded:
                i = running.row
                tokens, codes = integers[:, :, s, i].T
                count = int((codes != NONE).sum())
                code = codes[count - 1]
                start = running.turn_start
                searched = len(running.tokens) - start
                running.tokens += tokens[:count].tolist()
                if self.stops is not None:
                    kept = self.stops.kept(running.tokens[start:], searched)
                    if kept is not None:
                        count = kept - searched
                        code = STOPPED
                        # The slot keeps their keys: `filled` hides them, and later tokens are
                        # written over them.
                        del running.tokens[start + kept :]
                running.scores.append(scores[:count, :, s, i].T)
                # With the prompt's last token, and without the last drawn one, not yet computed.
                running.filled = len(running.tokens)
                if code == RUNNING:
                    shard.rows.append(running)
                    continue
                running.row = NONE
                running.turns.append(Turn(start, len(running.tokens), bool(code == STOPPED)))
                turn = len(running.turns) - 1
                answer = self.respond(
                    running.start.address, running.sample, turn, running.tokens[start:]
                )
                self.waiting.append((answer, shard, running))


def _seated(running: list[_Running], width: int, start: int) -> list[_Running]:
    """Gives free rows to trajectories without one, which join at `start`; returns these."""
    free = sorted(set(range(width)) - {r.row for r in running})
    new = [r for r in running if r.row == NONE]
    for r, row in zip(new, free, strict=False):
        r.row = row
        r.joined = start
    return new


def _entries(by_shard: list[list[Any]]) -> Iterator[tuple[tuple[int, int], Any]]:
    """Yields the entries that are not None, with their indices."""
    for s, items in enumerate(by_shard):
        for i, item in enumerate(items):
            if item is not None:
                yield (s, i), item
