"""Sealing of sampled groups: the calls of an explorer, and the data sets that it writes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.parallel import processes
from grre_jax.training.actors.calls import MOST_PROMPTS
from grre_jax.training.actors.explorer import Explorer
from grre_jax.training.checkpoints import integrity
from grre_jax.training.data.dynamic_sampling import refill_position

# Prompts from which on a call that has fewer is sampled in a quarter of its shape.
LEAST_PROMPTS = 64
# A network file system may show a new file only after its caches have expired.
SHARED_FOLDER_SECONDS = 90


def shared_calls(
    positions: Sequence[int], size: int, index: int = 0, count: int = 1
) -> list[list[int]]:
    """Returns an explorer's calls: the positions that a policy version samples are cut into calls
    of `size`, and the calls assigned to `count` explorers in turn.

    The calls, and with them every bit of the result, do not depend on the number of explorers.
    """
    cut = [list(positions[start : start + size]) for start in range(0, len(positions), size)]
    return [call for call in cut if call[0] // size % count == index]


@dataclasses.dataclass(frozen=True)
class _Sealing:
    """Sampling of calls under one policy version into a rollout folder; fields as for `explore`."""

    explorer: Explorer
    params: Any
    reader: rollouts.RolloutReader
    policy_version: int
    call_size: int
    keep: bool
    check: Callable[[], None]
    described: dict[str, Any]  # writer and metadata of the data sets

    def seal(self, calls: Sequence[Sequence[int]]) -> int:
        """Samples the calls of which a group is missing and seals the missing groups; returns their
        number.
        """
        version = self.policy_version
        absent = {p for call in calls for p in call if self.reader.find(p, version) is None}
        due = [call for call in calls if not absent.isdisjoint(call)]
        prepared = [([self.explorer.task.question(p) for p in call], call) for call in due]
        # Few prompts, such as refills, are sampled in a smaller shape, one of a few.
        most, size = max(map(len, due), default=0), self.call_size
        while size >= LEAST_PROMPTS and 4 * most <= size:
            size = -(-size // 4)
        groups = self.explorer.sample_calls(self.params, prepared, size, policy_version=version)
        groups = [group for group in groups if group.position in absent]
        self.check()
        if groups:
            with self.explorer.watch("sampling"):
                name = rollouts.write(
                    self.reader.folder, groups, policy_version=version, **self.described
                )
            self.reader.keep(name, groups if self.keep else ())
        return len(groups)

    def rounds(
        self, calls: Sequence[Sequence[int]], rounds: int, between: Callable[[], None]
    ) -> int:
        """Seals the calls, and then in up to `rounds` rounds the refills of their places without
        signal; returns the number of groups.
        """
        sealed, places = 0, calls
        for round_ in range(rounds + 1):
            sealed += self.seal([[refill_position(p, round_) for p in call] for call in places])
            between()
            if round_ < rounds:
                refresh_together(self.reader)
                left = ([p for p in call if not self.has_signal(p, round_)] for call in places)
                places = [call for call in left if call]
        return sealed

    def has_signal(self, place: int, round_: int) -> bool:
        """True if the rewards of a place's group of a round differ."""
        position = refill_position(place, round_)
        return self.reader.at(position, self.policy_version).has_reward_variance


def explore(
    explorer: Explorer,
    params: Any,
    *,
    reader: rollouts.RolloutReader,
    calls: Sequence[Sequence[int]],
    size: int,
    policy_version: int,
    metadata: dict[str, Any],
    writer: str = "explorer",
    rounds: int = 0,
    keep: bool = False,
    between: Callable[[], None] = lambda: None,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Samples the groups that are missing from the rollout folder and seals them in data sets.

    Draws are addressed, so groups that a killed run had sealed are kept. A call with a missing
    group is sampled whole. Each process of a run seals the missing groups that it sampled; the
    reader of each then finds those of all.

    Args:
        explorer, params: sample the groups, with the parameters of version `policy_version`.
        reader: of the rollout folder; it is refreshed.
        calls: positions in the prompt stream of each call, from `shared_calls`.
        size: positions per call.
        policy_version, metadata: of the data; a digest of the parameters is added to the metadata.
        writer: of the data sets; letters, digits, dot, dash and underscore.
        rounds: most refills of a position without signal (`training.data.dynamic_sampling`).
        keep: the reader keeps the sealed groups until they are read, for training on them next.
        between: called after each sealed data set; it may raise to stop.
        check: called by all processes before a data set is written; raises if it must not be.

    Returns:
        The number of groups that this process sealed.

    Raises:
        DataError: a data set cannot be written, or the processes do not find each other's.
    """
    if calls:
        jax.block_until_ready(params)  # of a step that still computes: training's time
        with explorer.watch("weights"):
            metadata = metadata | {"weights": integrity.digest(params)}
    writer = f"{writer}-{jax.process_index()}" if processes.many() else writer
    described = {"writer": writer, "metadata": metadata}
    sealing = _Sealing(explorer, params, reader, policy_version, size, keep, check, described)
    at_once = max(MOST_PROMPTS * jax.process_count() // size, 1)
    sealed = 0
    for start in range(0, len(calls), at_once):
        sealed += sealing.rounds(calls[start : start + at_once], rounds, between)
    refresh_together(reader)
    return sealed


def refresh_together(reader: rollouts.RolloutReader) -> None:
    """Refreshes the reader of every process of a run once all have sealed; afterwards each finds
    the same groups.

    Raises:
        DataError: the processes do not find the same groups: their folder is not shared.
    """
    processes.wait_for_all("rollouts sealed")
    reader.refresh()
    until = time.monotonic() + SHARED_FOLDER_SECONDS
    while True:
        seen = processes.gather_ints(len(reader))
        late = processes.gather_ints(int(time.monotonic() > until))
        if (seen == seen[0]).all():
            return
        if late.any():
            raise DataError(
                f"the processes see {', '.join(map(str, seen))} groups in {reader.folder}: the run"
                " folder must lie on storage that all of them share; choose another with --run-dir"
            )
        time.sleep(1)
        reader.refresh()
