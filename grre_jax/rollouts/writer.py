"""Sealing: one call writes one small immutable TFDS data set and enters it in the manifest.

    FOLDER/manifest.jsonl
    FOLDER/NAME/features.json, dataset_info.json, metadata.json,
                rollouts-train.array_record-00000-of-00001
    FOLDER/.incomplete/       data sets being written, and those that killed writers left

A data set is written under `.incomplete`, flushed to the disk, renamed into place and then entered
in the manifest, so that a process killed at any moment leaves either a sealed data set or nothing
that counts. features.json, dataset_info.json and metadata.json are written by TensorFlow Datasets'
own classes, without TensorFlow.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import grre_jax
from grre_jax.domains import AtLeastMinusOne, ConfigError, checked
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding, manifest, schema
from grre_jax.rollouts.reader import open_storage
from grre_jax.storage.files import sha256
from grre_jax.storage.remote import as_os_error, is_url

# The name that every data set has for TFDS: builder_from_directories reads data sets of one name
# together.
DATASET = "rollouts"
SPLIT = "train"
# Random access to single records. Level 1 of zstd compresses twice as fast as ArrayRecord's level
# 3, into 3% more bytes.
OPTIONS = "group_size:1,zstd:1"
DATA_FILE = f"{DATASET}-{SPLIT}.array_record-00000-of-00001"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """One data set to be sealed.

    Attributes:
        groups: at least one; iterated once.
        writer, policy_version, metadata: as for `write`.
    """

    groups: Iterable[schema.Group]
    writer: str
    policy_version: int = -1
    metadata: dict[str, Any] | None = None


WRITER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def write(
    folder: str | os.PathLike[str],
    groups: Iterable[schema.Group],
    *,
    writer: str,
    policy_version: int = -1,
    metadata: dict[str, Any] | None = None,
) -> str:
    """Seals groups as one data set of a rollout folder, which is made when it does not exist.

    Returns when the disk holds the data set and its manifest entry. Several writers of different
    names may write to one folder on a disk. Groups are taken one at a time, so that an import need
    not fit in memory.

    Args:
        folder: the path of the rollout folder.
        groups: at least one group.
        writer: who writes: letters, digits, dot, dash and underscore.
        policy_version: version of the policy that sampled them, -1 when unknown or mixed.
        metadata: provenance, as JSON can hold it: task, model and tokenizer fingerprint, `contains`
            (benchmark splits that the questions come from, as ["gsm8k/test"]), and so on.
            `created_by`, this package's version, is added.

    Returns:
        The data set's name: its folder's name.

    Raises:
        UsageError: a writer name, policy version, metadata or folder that cannot be used.
        DataError: no groups, a malformed group, a group of another policy version, or no space
            left. Nothing is sealed then.

    Examples:
        >>> from grre_jax import rollouts
        >>> groups = [
        ...     rollouts.Group(
        ...         group_id=f"sums/{n}",
        ...         position=n,
        ...         prompt=f"{n}+1=",
        ...         texts=[str(n + 1), "7"],
        ...         rewards=[1, 0],
        ...         policy_version=[3, 3],
        ...     )
        ...     for n in range(2)
        ... ]
        >>> name = rollouts.write(
        ...     "my_rollouts", groups, writer="me", policy_version=3, metadata={"task": "sums"}
        ... )
        >>> reader = rollouts.read("my_rollouts")
        >>> len(reader), reader.datasets[0].name == name, reader.at(1, policy_version=3).prompt
        (2, True, '1+1=')
    """
    dataset = DataSet(
        groups=groups, writer=writer, policy_version=int(policy_version), metadata=metadata
    )
    return write_all(folder, [dataset])[0]


def write_all(folder: str | os.PathLike[str], datasets: Iterable[DataSet]) -> list[str]:
    """Seals several data sets together: the manifest gets the lines of all in one write, or none.

    Args:
        folder: the rollout folder, made when it does not exist.
        datasets: at least one; iterated once, each after the last was written.

    Returns:
        The data sets' names.

    Raises:
        UsageError, DataError: as for `write`.
    """
    if is_url(folder):
        raise UsageError(
            f"{folder}: expected a path; write there, and copy the folder to the store"
        )
    storage = open_storage(folder)
    try:
        with storage.staging() as staging:
            staged = [
                _stage(staging / str(number), dataset) for number, dataset in enumerate(datasets)
            ]
            if not staged:
                raise DataError(
                    f"There are no groups to write to {storage.root}; a data set has at least one."
                )
            return storage.publish(staged)
    except OSError as error:
        raise DataError(
            f"Cannot write rollouts to {storage.root}: {error.strerror or error}; nothing was"
            " sealed. Check that it is writable and has space left."
        ) from error


def _provenance(dataset: DataSet) -> dict[str, Any]:
    """Returns the data set's metadata as it is stored.

    Raises:
        UsageError: the writer's name, policy version or metadata cannot be used.
    """
    if not WRITER_NAME.fullmatch(dataset.writer):
        raise ConfigError("writer", "1 to 64 letters, digits, '.', '-' and '_'", dataset.writer)
    checked("policy_version", AtLeastMinusOne, dataset.policy_version)
    provenance = {"created_by": f"grre_jax {grre_jax.__version__}"} | (dataset.metadata or {})
    # A text would be read as the splits that its letters name.
    checked("metadata.contains", tuple[str, ...], provenance.get("contains", ()))
    try:
        # As it will be read: JSON makes lists of tuples and strings of keys.
        return json.loads(json.dumps(provenance, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError("metadata", f"JSON values ({error})", dataset.metadata) from error


def _stage(folder: Path, dataset: DataSet) -> tuple[Path, manifest.Entry]:
    """Writes a data set's files, and waits until the disk holds them."""
    provenance = _provenance(dataset)
    version = dataset.policy_version
    positions: list[int] = []
    completions = tokens = judged = 0
    reward = 0.0
    folder.mkdir()
    with _records(folder / DATA_FILE) as write_record:
        for group in dataset.groups:
            if version >= 0 and not np.isin(group.policy_version, (version, -1)).all():
                raise DataError(
                    f"Group {group.group_id!r}: field policy_version has"
                    f" {np.unique(group.policy_version).tolist()} in a data set of version"
                    f" {version}; write one data set per version, or one with policy_version=-1."
                )
            group.validate()
            write_record(encoding.encode(group))
            positions.append(group.position)
            completions += group.num_completions
            tokens += len(group.tokens)
            reward += float(group.judged_rewards.sum(dtype=np.float64))
            judged += int(group.judged.sum())
    if not positions:
        raise DataError("There are no groups to write; a data set has at least one.")
    _describe(folder, len(positions), provenance)
    suffix = f"-v{version:06d}" if version >= 0 else ""
    suffix += f"-p{positions[0]:08d}" if positions[0] >= 0 else ""
    return folder, manifest.Entry(
        name=f"{dataset.writer}{suffix}",
        writer=dataset.writer,
        policy_version=version,
        groups=len(positions),
        completions=completions,
        tokens=tokens,
        reward_mean=reward / max(judged, 1),
        failures=completions - judged,
        positions=manifest.runs(positions),
        files=_sealed_files(folder),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        metadata=provenance,
    )


@contextlib.contextmanager
def _records(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Gives the function that adds a record to a new ArrayRecord file.

    ArrayRecord reports a full disk, often at close only, as RuntimeError: it becomes an OSError.
    """
    from array_record.python import array_record_module

    with as_os_error():
        output = array_record_module.ArrayRecordWriter(str(path), OPTIONS)

    def write_record(data: bytes) -> None:
        with as_os_error():
            output.write(data)

    try:
        yield write_record
    finally:
        with as_os_error():
            output.close()


def _describe(staging: Path, groups: int, provenance: dict[str, Any]) -> None:
    """Writes features.json, dataset_info.json and metadata.json as TFDS does."""
    import tensorflow_datasets as tfds

    identity = tfds.core.dataset_info.DatasetIdentity(
        name=DATASET,
        version=tfds.core.Version(schema.SCHEMA_VERSION),
        data_dir=str(staging),
        module_name=__name__,
    )
    info = tfds.core.DatasetInfo(
        builder=identity,
        description="Groups: one prompt with its sampled completions and their rewards.",
        features=encoding.features(),
        metadata=tfds.core.MetadataDict(provenance),
        disable_shuffling=True,
    )
    info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)
    size = (staging / DATA_FILE).stat().st_size
    split = tfds.core.SplitInfo(
        name=SPLIT, shard_lengths=[groups], num_bytes=size, filename_template=None
    )
    info.set_splits(tfds.core.splits.SplitDict([split]))
    info.write_to_directory(staging)


def _sealed_files(staging: Path) -> dict[str, dict[str, Any]]:
    """Returns digests and sizes of the folder's files, once the disk holds them and their names."""
    files = {}
    for path in sorted(staging.iterdir()):
        with open(path, "r+b") as file:
            os.fsync(file.fileno())
        files[path.name] = {"sha256": sha256(path), "bytes": path.stat().st_size}
    manifest.sync_folder(staging)
    return files
