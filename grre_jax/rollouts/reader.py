"""Reading a rollout folder: random access to every group that the manifest lists, each checked
as it is read.
"""

import bisect
import os
import threading
from collections.abc import Sequence

from grre_jax.errors import DataError
from grre_jax.rollouts import manifest, schema
from grre_jax.rollouts.storage import open_storage

KEPT_TOKENS = 4_000_000  # of groups kept in memory until they are read, some 20 bytes each


def read(folder: str | os.PathLike[str]) -> "RolloutReader":
    """Opens a rollout folder.

    Args:
        folder: a path, or the URL of a folder in an object store (s3://, gs://).

    Raises:
        DataError: the folder does not exist or is not a rollout folder, or its manifest is damaged.

    Examples:
        >>> from grre_jax import rollouts
        >>> group = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> _ = rollouts.write("my_rollouts", [group], writer="me")
        >>> for group in rollouts.read("my_rollouts"):
        ...     print(group.prompt, group.texts, group.rewards)
        1+1= ['2', '3'] [1. 0.]
    """
    return RolloutReader(folder)


class RolloutReader:
    """All groups of a rollout folder, in the order in which their data sets were sealed.

    `len(reader)`, `reader[number]` and iteration give groups. The number of a group never changes,
    since data sets are only ever added. Threads may share a reader. A folder to which nothing has
    been written yet has no groups.

    Args:
        folder: a path, or the URL of a folder in an object store (s3://, gs://), of which there are
            the groups of now.
        most: data sets that are read, the first ones; None for all.

    Raises:
        DataError: the folder does not exist or is not a rollout folder, or its manifest is damaged.

    Examples:
        `refresh` adds the data sets that were sealed since, and returns the number of their groups:

        >>> from grre_jax import rollouts
        >>> group = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> _ = rollouts.write("my_rollouts", [group], writer="me")
        >>> reader = rollouts.RolloutReader("my_rollouts")
        >>> _ = rollouts.write("my_rollouts", [group], writer="another")
        >>> len(reader), reader.refresh(), len(reader)
        (1, 1, 2)
        >>> [entry.writer for entry in reader.datasets]
        ['me', 'another']
    """

    def __init__(self, folder: str | os.PathLike[str], most: int | None = None) -> None:
        self.storage = open_storage(folder)
        self.folder = self.storage.root
        self.storage.check()
        self._most = most
        self._read = 0  # bytes of the manifest
        self._datasets: list[manifest.Entry] = []
        self._starts = [0]  # number of each one's first group, and of the next one's
        self._names: set[str] = set()
        # Numbers of the groups at each position of the prompt stream, oldest first, without
        # imported groups (at -1).
        self.index: dict[int, list[int]] = {}
        self._growing = threading.Lock()  # held while data sets are added
        self._kept: dict[tuple[str, int], schema.Group] = {}
        self._keeping = threading.Lock()  # held while `_kept` changes
        self.refresh()

    @property
    def datasets(self) -> tuple[manifest.Entry, ...]:
        """The manifest's entries, in the order in which they were sealed."""
        return tuple(self._datasets)

    @property
    def contains(self) -> frozenset[str]:
        """Benchmark splits that the questions come from, by the data sets' provenance
        ("gsm8k/test").
        """
        return frozenset(
            split for entry in self.datasets for split in entry.metadata.get("contains", ())
        )

    def refresh(self) -> int:
        """Adds the data sets sealed since the folder was opened or last refreshed.

        Returns:
            The number of groups that were added.

        Raises:
            CorruptManifest: a finished line of the manifest is damaged; the message names file,
                line and fix. Nothing is added then.
        """
        with self._growing:
            before = len(self)
            content = self.storage.read_manifest()
            shown = f"{self.folder}/{manifest.FILENAME}"
            new = list(manifest.entries(content, shown, self._read))
            for entry in new:
                if isinstance(entry, manifest.CorruptManifest):
                    raise entry
            for entry in new:
                self._add(entry)
            self._read = manifest.finished(content)
            return len(self) - before

    def _add(self, entry: manifest.Entry) -> None:
        if entry.name in self._names or len(self._datasets) == self._most:
            return  # of a line that somebody copied the groups are not there twice
        self._names.add(entry.name)
        # In this order: a thread that counts a group finds its data set too.
        self._datasets.append(entry)
        number = self._starts[-1]
        self._starts.append(number + entry.groups)
        for first, count in entry.positions:
            for place in range(count if first >= 0 else 0):
                self.index.setdefault(first + place, []).append(number + place)
            number += count

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> schema.Group:
        """Returns a group; negative numbers count from the end.

        Raises:
            IndexError: the number is out of range.
            CorruptShard: it cannot be read as it was written; the message names file and record.
        """
        entry, record = self.locate(number)
        with self._keeping:
            group = self._kept.pop((entry.name, record), None)
        return self.storage.group(entry, record) if group is None else group

    def keep(self, dataset: str, groups: Sequence[schema.Group]) -> None:
        """Keeps groups that this process has just sealed in memory, up to KEPT_TOKENS, so that
        the first reading of each need not decode its record.

        Args:
            dataset: the data set's name, as `write` returned it.
            groups: all of its groups, in order.
        """
        with self._keeping:
            tokens = sum(len(group.tokens) for group in self._kept.values())
            for record, group in enumerate(groups):
                tokens += len(group.tokens)
                if tokens > KEPT_TOKENS:
                    return
                self._kept[dataset, record] = group

    def locate(self, number: int) -> tuple[manifest.Entry, int]:
        """Returns the data set of a group, and the number of the group's record in it.

        Raises:
            IndexError: the number is out of range.
        """
        count = len(self)
        wanted = number + count if number < 0 else number
        if not 0 <= wanted < count:
            raise IndexError(f"group {number} of {count} in {self.folder}")
        which = bisect.bisect_right(self._starts, wanted) - 1
        return self._datasets[which], wanted - self._starts[which]

    def find(self, position: int, policy_version: int | None = None) -> int | None:
        """Returns the number of the newest group at a position of the prompt stream, or of the
        first one of a policy version; None without one.

        Args:
            position: in the prompt stream.
            policy_version: only groups of data sets of this policy version, if given. The first
                that was sealed is found (a learner may have trained on it before the others came).
        """
        numbers = self.index.get(position, [])
        if policy_version is None:
            return numbers[-1] if numbers else None
        for number in numbers:
            if self.locate(number)[0].policy_version == policy_version:
                return number
        return None

    def at(self, position: int, policy_version: int | None = None) -> schema.Group:
        """Returns the group at a position of the prompt stream that `find` finds.

        Args:
            position: in the prompt stream.
            policy_version: only groups of data sets of this policy version, if given.

        Raises:
            DataError: the group does not exist, or is damaged.
        """
        number = self.find(position, policy_version)
        if number is None:
            version = "" if policy_version is None else f" of policy version {policy_version}"
            raise DataError(
                f"Rollout folder {self.folder} has no group{version} at position {position};"
                " imported groups have no position."
            )
        return self[number]
