"""Sealing of sampled groups: the calls of an explorer, and the data sets that it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.parallel import processes
from grre_jax.training.actors.calls import MOST_PROMPTS
from grre_jax.training.actors.cluster import Explorers
from grre_jax.training.actors.explorer import Explorer
from grre_jax.training.checkpoints import integrity
from grre_jax.training.data.dynamic_sampling import refill_position

# Prompts from which on a call that has fewer is sampled in a quarter of its shape.
LEAST_PROMPTS = 64
WRITER = "explorer"  # of the data sets
MOST_DRAWN = 2  # calls that wait to be verified; the sampler waits at more
PAUSE = 0.25  # seconds between two calls of `between` while nothing is sealed
# A network file system may show a new file only after its caches have expired.
SHARED_FOLDER_SECONDS = 90


def calls_of(positions: Sequence[int], size: int) -> list[list[int]]:
    """Returns the calls into which the positions that a policy version samples are cut."""
    return [list(positions[start : start + size]) for start in range(0, len(positions), size)]


class Backlog:
    """Drawn calls that are not sealed yet. One thread verifies and another seals, in the order of
    the draws, so that the sampler waits for neither. A context manager, which ends the threads once
    all is sealed.
    """

    def __init__(self) -> None:
        self._verifier, self._sealer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._room = threading.Semaphore(MOST_DRAWN)
        self._ended: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._open: set[Future] = set()

    def __enter__(self) -> Backlog:
        return self

    def __exit__(self, *_: object) -> None:
        self._verifier.shutdown()
        self._sealer.shutdown()

    def verify(self, judge: Callable[[], list[rollouts.Group]]) -> Future[list[rollouts.Group]]:
        """Verifies a call next; returns once at most MOST_DRAWN calls wait for it."""
        verified = self._verifier.submit(judge)
        verified.add_done_callback(lambda _: self._room.release())
        self._room.acquire()
        return verified

    def seal(self, write: Callable[[], int]) -> Future[int]:
        """Seals a data set next."""
        return self.follow(self._sealer.submit(write))

    def follow(self, work: Future) -> Future:
        """Makes `wait` wait for other work too; returns it."""
        self._open.add(work)
        work.add_done_callback(self._ended.put)
        return work

    @property
    def busy(self) -> bool:
        """True if something is under way."""
        return bool(self._open)

    def wait(
        self, until: Callable[[], bool] = lambda: False, between: Callable[[], None] = lambda: None
    ) -> None:
        """Returns once a condition holds or nothing is under way.

        Args:
            until: the condition; looked at again whenever something is sealed.
            between: called whenever something is sealed, and now and then; it may raise to stop.

        Raises:
            Exception: of what failed, in a call or a data set.
        """
        done = False
        while self._open and not done:
            done = until()
            with contextlib.suppress(queue.Empty):
                self._end(self._ended.get(timeout=0 if done else PAUSE))
            while not self._ended.empty():
                self._end(self._ended.get())
            between()

    def _end(self, work: Future) -> None:
        self._open.discard(work)
        work.result()


@dataclasses.dataclass(frozen=True)
class _Sealing:
    """Sampling of calls under one policy version into a rollout folder; fields as for `begin`."""

    explorer: Explorer | Explorers
    params: Any
    reader: rollouts.RolloutReader
    policy_version: int
    call_size: int
    keep: bool
    each: bool
    between: Callable[[], None]
    backlog: Backlog
    described: dict[str, Any]  # writer and metadata of the data sets

    @property
    def together(self) -> bool:
        """True if the processes of the run sample together."""
        return processes.many() and not self.explorer.remote

    def seal(self, calls: Sequence[Sequence[int]]) -> list[Future[int]]:
        """Samples the calls of which a group is missing; the missing groups are being sealed."""
        version = self.policy_version
        absent = {p for call in calls for p in call if self.reader.find(p, version) is None}
        due = [call for call in calls if not absent.isdisjoint(call)]
        prepared = [(self.explorer.questions(call), call) for call in due]
        # Few prompts, such as refills, are sampled in a smaller shape, one of a few.
        most, size = max(map(len, due), default=0), self.call_size
        while size >= LEAST_PROMPTS and 4 * most <= size:
            size = -(-size // 4)
        sealed: list[Future[int]] = []
        judged: list[Future[list[rollouts.Group]]] = []
        for drawn in self.explorer.draw(self.params, prepared, size, version=version):
            judged.append(self.backlog.verify(partial(self.explorer.judged, drawn)))
            if self.each or len(judged) == len(due):
                sealed.append(self.backlog.seal(partial(self._write, judged, absent)))
                judged = []
                if self.together:  # each seals its own rows before the next call
                    self.backlog.wait()
                self.between()
        return sealed

    def seal_done(self, judged: Future[list[rollouts.Group]], positions: set[int]) -> None:
        """Seals a call that has ended; its error, if it failed, is the call's."""
        if not judged.exception():
            self.backlog.seal(partial(self._write, [judged], positions))

    def _write(self, judged: list[Future[list[rollouts.Group]]], absent: set[int]) -> int:
        groups = [group for call in judged for group in call.result() if group.position in absent]
        if groups:
            folder, version = self.reader.folder, self.policy_version
            name = rollouts.write(folder, groups, policy_version=version, **self.described)
            self.reader.keep(name, groups if self.keep else ())
            if not self.together:  # they look at the folder together
                self.reader.refresh()
        return len(groups)

    def rounds(self, calls: Sequence[Sequence[int]], rounds: int) -> list[Future[int]]:
        """Seals the calls, and then in up to `rounds` rounds the refills of their zero-variance
        groups.
        """
        sealed, left = [], calls
        for round_ in range(rounds + 1):
            sealed += self.seal([[refill_position(p, round_) for p in call] for call in left])
            if round_ < rounds:
                for data_set in sealed:
                    data_set.result()
                if self.together:
                    refresh_together(self.reader)
                again = [[p for p in call if self._is_flat(p, round_)] for call in left]
                left = list(filter(None, again))
        return sealed

    def _is_flat(self, position: int, round_: int) -> bool:
        group = self.reader.at(refill_position(position, round_), self.policy_version)
        return not group.has_reward_variance


def begin(
    explorer: Explorer | Explorers,
    params: Any,
    *,
    reader: rollouts.RolloutReader,
    calls: Sequence[Sequence[int]],
    size: int,
    policy_version: int,
    metadata: dict[str, Any],
    backlog: Backlog,
    rounds: int = 0,
    keep: bool = False,
    each: bool = False,
    between: Callable[[], None] = lambda: None,
) -> list[Future[int]]:
    """Samples the groups that are missing from the rollout folder, and leaves the last of them to
    be verified and sealed.

    Draws are addressed, so groups that a killed run had sealed are kept. A call with a missing
    group is sampled whole. Each process of a run seals the missing groups that it sampled; the
    reader of each then finds those of all.

    Args:
        explorer, params: sample the groups, with the parameters of version `policy_version`.
        reader: of the rollout folder; it is refreshed.
        calls: positions in the prompt stream of each call, from `calls_of`.
        size: positions per call.
        policy_version, metadata: of the data; `weights`, a digest of the parameters, is added to
            the metadata if it is not there.
        backlog: verifies and seals.
        rounds: most refills of a position whose group has zero variance
            (`training.data.dynamic_sampling`).
        keep: the reader keeps the sealed groups until they are read, for training on them next.
        each: every call becomes a data set as soon as it is verified.
        between: called after the calls of each data set; it may raise to stop.

    Returns:
        The number of groups in each data set, once it is sealed.
    """
    if calls and "weights" not in metadata:
        jax.block_until_ready(params)  # of a step that still computes: training's time
        with explorer.watch("weights"):
            metadata = metadata | {"weights": integrity.digest(params)}
    described = {"writer": WRITER, "metadata": metadata}
    of_version = (reader, policy_version, size, keep, each)
    sealing = _Sealing(explorer, params, *of_version, between, backlog, described)
    if sealing.together:
        described["writer"] = f"{WRITER}-{jax.process_index()}"
    at_once = max(MOST_PROMPTS * jax.process_count() // size, 1)
    sealed: list[Future[int]] = []
    for start in range(0, len(calls), at_once):
        sealed += sealing.rounds(calls[start : start + at_once], rounds)
    return sealed


def begin_each(
    explorer: Explorers,
    params: Any,
    *,
    reader: rollouts.RolloutReader,
    calls: Sequence[Sequence[int]],
    size: int,
    policy_version: int,
    metadata: dict[str, Any],
    backlog: Backlog,
) -> list[Future[list[rollouts.Group]]]:
    """Has explorers on a cluster sample calls; each becomes a data set once it is there, whatever
    others take.

    Args:
        explorer, params, reader, calls, size, policy_version, metadata, backlog: as of `begin`.

    Returns:
        The groups of each call, once they are there.
    """
    described = {"writer": WRITER, "metadata": metadata}
    options = (reader, policy_version, size, False, True, lambda: None)
    sealing = _Sealing(explorer, params, *options, backlog, described)
    prepared = [(explorer.questions(call), call) for call in calls]
    drawn = list(explorer.draw(params, prepared, size, version=policy_version))
    for call, groups in zip(calls, drawn, strict=True):
        # `wait` sees the data set before the call has left it.
        groups.add_done_callback(lambda done, call=call: sealing.seal_done(done, set(call)))
        backlog.follow(groups)
    return drawn


def refresh_together(reader: rollouts.RolloutReader) -> None:
    """Refreshes the reader of every process of a run once all have sealed; afterwards each finds
    the same groups.

    Raises:
        DataError: the processes do not find the same groups: their folder is not shared.
    """
    processes.wait_for_all("rollouts sealed")
    reader.refresh()
    most = int(processes.gather_ints(len(reader)).max())
    refresh_until(reader, lambda: len(reader) >= most)


def refresh_until(reader: rollouts.RolloutReader, complete: Callable[[], bool]) -> None:
    """Refreshes the reader of every process of a run until a condition holds in all of them.

    Raises:
        DataError: it does not hold: their folder is not shared.
    """
    end = time.monotonic() + SHARED_FOLDER_SECONDS
    while not processes.gather_ints(int(complete())).all():
        seen = processes.gather_ints(len(reader))
        if processes.gather_ints(int(time.monotonic() > end)).any():
            raise DataError(
                f"the processes see {', '.join(map(str, seen))} groups in {reader.folder}: the run"
                " folder must lie on storage that all of them share; choose another with --run-dir"
            )
        time.sleep(PAUSE)
        reader.refresh()
