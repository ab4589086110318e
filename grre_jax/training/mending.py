"""Data sets of a run's own that are damaged where they lie: sampled again by the policy that sampled them, and put back if that gives what the manifest says, to the byte.

Draws are addressed by place and not by who drew what before, so the same checkpoint on the same kind of machine gives the same groups. What cannot be sampled again is an error that
says how to go on without it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.parallel import processes
from grre_jax.rollouts.manifest import Entry
from grre_jax.training import refill, setup
from grre_jax.training.explore import Explorer
from grre_jax.training.state import TrainState


@dataclasses.dataclass
class Mender:
    """Puts back damaged data sets of the run's own.

    Args:
        parts: of the run.
        explorer: samples for training.
        reader: of the run's rollout folder.
        checkpoints: of the run.
        free: explorers sample with the newest policy, not with the one that the schedule names.
        console: is told what was put back.
    """

    parts: setup.Parts
    explorer: Explorer
    reader: rollouts.RolloutReader
    checkpoints: Any
    free: bool
    console: Any

    def __post_init__(self):
        self._mended: set[str] = set()

    def __call__(self, error: rollouts.CorruptRecord | rollouts.CorruptShard, state: TrainState) -> None:
        """Returns when what could not be read can be. All processes of a run call it together, each with its own error of the same data set.

        Args:
            error: what reading raised.
            state: the learner's.

        Raises:
            CorruptRecord, CorruptShard: the same error, if it is of another folder's file.
            DataError: it cannot be sampled again; the message says why, and what can be done by hand.
        """
        entry = self.reader.dataset_of(error.file)
        if entry is None:
            raise error
        version, now = entry.policy_version, int(state.step)
        if entry.name in self._mended:
            raise self._by_hand(error, "It was sampled again and put back before, and is damaged anew.")
        if version != now and version not in self.checkpoints.steps:
            raise self._by_hand(error, f"It cannot be sampled again: the checkpoint of policy version {version} is gone.")
        self.console.print(f"damaged  {error.file}: sampling its {entry.groups} groups again", highlight=False)
        groups = self._sampled(entry, state.params if version == now else self.checkpoints.restore_params(state.params, version))

        def put_back() -> None:
            if not rollouts.put_back(self.reader.folder, entry, groups):
                raise self._by_hand(error, "Sampled again on this machine, it is not what the manifest says.")

        processes.on_first(put_back)
        self.reader.reopen(entry)
        self._mended.add(entry.name)
        self.console.print(f"restored {error.file}", highlight=False)

    def _sampled(self, entry: Entry, params: Any) -> list[rollouts.Group]:
        """The data set's groups, in its order, from calls of the places that were sampled together."""
        config = self.parts.config
        schedule, places = config.schedule, [place for first, count in entry.positions for place in range(first, first + count)]
        together = list(schedule(0).fresh) if self.free else schedule.sampled(entry.policy_version, config.training.steps)
        size = self.explorer.call_size(len(together))
        number = {place: i // size for i, place in enumerate(together)}
        calls: dict[tuple[int, int], list[int]] = {}
        for place in places:
            round_, first = divmod(place, refill.LANE_PLACES)
            calls.setdefault((round_, first // size if self.free else number.get(first, -1)), []).append(place)
        asked = [([self.explorer.task.question(place) for place in call], call) for call in calls.values()]
        return self.explorer.called_by_all(self.parts.full(params), asked, size, policy_version=entry.policy_version)

    def _by_hand(self, error: DataError, why: str) -> DataError:
        return DataError(
            f"{error} {why} Without a copy: stop all processes of the run, copy what is whole with `grre rollouts merge {self.reader.folder} --output NEW --skip-damaged`, put NEW in "
            "the folder's place and go on; a group that is lost is sampled again if the checkpoint of its policy version is still there."
        )
