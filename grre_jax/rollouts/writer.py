"""Sealing: one call writes one small immutable TFDS data set and enters it in the manifest.

    FOLDER/manifest.jsonl
    FOLDER/NAME/features.json, dataset_info.json, metadata.json, rollouts-train.array_record-00000-of-00001
    FOLDER/.incomplete/       data sets being written, and what killed writers left of theirs

A data set is written under `.incomplete`, flushed to the disk, renamed into place and then entered in the manifest, so that a process
killed at any moment leaves either a sealed data set or nothing that counts. features.json, dataset_info.json and metadata.json are
written by TensorFlow Datasets' own classes, without TensorFlow.
"""

import concurrent.futures
import contextlib
import datetime
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import manifest, record, schema

DATASET = "rollouts"  # the name that every data set has for TFDS: builder_from_directories reads data sets of one name together
SPLIT = "train"
INCOMPLETE = ".incomplete"
DATA_FILE = f"{DATASET}-{SPLIT}.array_record-00000-of-00001"

_WRITER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def write(
    folder: str | os.PathLike[str],
    groups: Iterable[schema.Group],
    *,
    writer: str,
    policy_version: int = -1,
    metadata: dict[str, Any] | None = None,
) -> str:
    """Seals groups as one data set of a rollout folder, which is made when it does not exist.

    Returns when the disk holds the data set and its manifest entry. Several writers, threads or processes, may write to one folder.
    Groups are taken one at a time, so that an import need not fit in memory.

    Args:
      folder: the rollout folder, on a local disk.
      groups: at least one group.
      writer: who writes: letters, digits, dot, dash and underscore.
      policy_version: version of the policy that sampled them, -1 when unknown or mixed.
      metadata: provenance, as JSON can hold it: task, model and tokenizer fingerprint, `contains` (benchmark splits that the questions
        come from, as ["gsm8k/test"]), and so on. `created_by`, this package's version, is added.

    Returns:
      The data set's name: its folder's name.

    Raises:
      UsageError: a writer name, policy version, metadata or folder that cannot be used.
      DataError: no groups, a malformed group, a group of another policy version, or no space left. Nothing is sealed then.
    """
    policy_version = int(policy_version)
    root, provenance = _checked(folder, writer, policy_version, metadata)
    try:
        (root / INCOMPLETE).mkdir(parents=True, exist_ok=True)
        (root / manifest.FILENAME).touch()  # first of all: it is what makes the folder a rollout folder
        remove_leftovers(root)
        with _staging(root) as staging:
            summary = _write_records(staging, groups, policy_version)
            _describe(staging, summary, provenance)
            files = _flush(staging)
            name = _publish(staging, root, _stem(writer, policy_version, summary["positions"]))
            entry = manifest.Entry(
                name=name,
                writer=writer,
                policy_version=policy_version,
                files=files,
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
                metadata=provenance,
                **summary,
            )
            _enter(root, entry)
    except OSError as error:
        raise DataError(
            f"Cannot write rollouts to {root}: {error.strerror or error}; nothing was sealed. Check that it is writable and has space left."
        ) from error
    return name


def remove_leftovers(folder: str | os.PathLike[str]) -> list[str]:
    """Removes what killed writers left under `.incomplete`; data sets that are being written stay (their writers hold a lock).

    Returns:
      Names of what was removed.
    """
    removed = []
    with contextlib.suppress(FileNotFoundError), os.scandir(Path(folder) / INCOMPLETE) as found:
        for leftover in found:
            if not leftover.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):  # locked: its writer lives; gone: another writer cleans too
                with _locked(Path(leftover.path)):
                    shutil.rmtree(leftover.path)
                    removed.append(leftover.name)
    return removed


def _checked(
    folder: str | os.PathLike[str], writer: str, policy_version: int, metadata: dict[str, Any] | None
) -> tuple[Path, dict[str, Any]]:
    if "://" in os.fspath(folder):
        raise UsageError(f"Rollout folder {os.fspath(folder)!r} is not on a local disk; write to a local folder and copy it from there.")
    if not _WRITER_NAME.fullmatch(writer):
        raise UsageError(f"Writer name {writer!r} cannot be used in a folder name; use 1 to 64 letters, digits, '.', '-' and '_'.")
    if policy_version < -1:
        raise UsageError(f"policy_version is {policy_version}; give the version of the sampling policy, or -1 when it is unknown.")
    root = Path(folder).expanduser()
    if root.exists() and not root.is_dir():
        raise UsageError(f"Rollout folder {root} is a file; name a folder.")
    provenance = {"created_by": f"grre_jax {_code_version()}"} | (metadata or {})
    try:
        return root, json.loads(json.dumps(provenance, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"The rollouts' metadata must be what JSON can hold: {error}.") from error


@contextlib.contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """A new folder under `.incomplete`, locked while this process writes it; removed at the end unless it was renamed away."""
    while True:
        staging = root / INCOMPLETE / uuid.uuid4().hex
        staging.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_locked(staging))
            except OSError:
                continue
            if not staging.exists():
                continue  # taken for a leftover between mkdir and lock
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
            return


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which the kernel drops when the process dies however it dies. OSError when another holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _write_records(staging: Path, groups: Iterable[schema.Group], policy_version: int) -> dict[str, Any]:
    """Writes the data file; returns what the manifest says about its content."""
    from array_record.python import array_record_module

    positions, completions, tokens, reward = [], 0, 0, 0.0
    with _as_os_error():
        output = array_record_module.ArrayRecordWriter(str(staging / DATA_FILE), "group_size:1")  # random access to single records
    try:
        for group in groups:
            group.validate()
            if policy_version >= 0 and not ((group.policy_version == policy_version) | (group.policy_version == -1)).all():
                raise DataError(
                    f"Group {group.group_id!r}: field policy_version has {np.unique(group.policy_version).tolist()} in a data set of "
                    f"version {policy_version}; write one data set per version, or one with policy_version=-1."
                )
            data = record.encode(group)
            with _as_os_error():
                output.write(data)
            positions.append(group.position)
            completions += group.num_completions
            tokens += len(group.tokens)
            reward += float(group.rewards.sum(dtype=np.float64))
    finally:
        with _as_os_error():
            output.close()
    if not positions:
        raise DataError(f"There are no groups to write to {staging.parent.parent}; a data set holds at least one.")
    return {
        "groups": len(positions),
        "completions": completions,
        "tokens": tokens,
        "reward_mean": reward / completions,
        "positions": manifest.runs(positions),
    }


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """ArrayRecord reports a full disk and the like, often at close only, as RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(str(error).split(";")[0]) from error


def _describe(staging: Path, summary: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Writes features.json, dataset_info.json and metadata.json as TFDS does."""
    import tensorflow_datasets as tfds

    identity = tfds.core.dataset_info.DatasetIdentity(
        name=DATASET, version=tfds.core.Version(schema.SCHEMA_VERSION), data_dir=str(staging), module_name=__name__
    )
    info = tfds.core.DatasetInfo(
        builder=identity,
        description="Groups: one prompt with its sampled completions and their rewards.",
        features=record.features(),
        metadata=tfds.core.MetadataDict(provenance),
        disable_shuffling=True,
    )
    info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)
    size = (staging / DATA_FILE).stat().st_size
    split = tfds.core.SplitInfo(name=SPLIT, shard_lengths=[summary["groups"]], num_bytes=size, filename_template=None)
    info.set_splits(tfds.core.splits.SplitDict([split]))
    info.write_to_directory(staging)


def _flush(staging: Path) -> dict[str, manifest.SealedFile]:
    """Digests and sizes of the folder's files, once the disk holds them and their names."""
    paths = sorted(staging.iterdir())
    # All at once: a file system commits flushes that wait together as one, and on a busy disk each costs milliseconds.
    with concurrent.futures.ThreadPoolExecutor(len(paths) + 1) as pool:
        names = pool.submit(manifest.sync_folder, staging)
        files = dict(zip((path.name for path in paths), pool.map(_sealed, paths), strict=True))
        names.result()
    return files


def _sealed(path: Path) -> manifest.SealedFile:
    """The file's digest and size, once the disk holds it."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
        return manifest.SealedFile(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)


def _stem(writer: str, policy_version: int, positions: tuple[tuple[int, int], ...]) -> str:
    version = f"-v{policy_version:06d}" if policy_version >= 0 else ""
    first = positions[0][0]
    return f"{writer}{version}" + (f"-p{first:08d}" if first >= 0 else "")


def _publish(staging: Path, root: Path, stem: str) -> str:
    """Renames the data set into place, under a name that nothing has."""
    number = 1
    while True:
        name = stem if number == 1 else f"{stem}-{number}"
        try:
            if os.path.lexists(root / name):
                raise FileExistsError(name)
            os.rename(staging, root / name)
        except OSError:
            # rename never replaces a folder that holds something: another writer of this name was faster
            if not os.path.lexists(root / name):
                raise
            number += 1
            continue
        manifest.sync_folder(root)
        return name


def _enter(root: Path, entry: manifest.Entry) -> None:
    try:
        manifest.append(root, entry)
    except OSError:
        shutil.rmtree(root / entry.name, ignore_errors=True)  # without its line it does not exist
        raise


@functools.cache
def _code_version() -> str:
    try:
        return importlib.metadata.version("grre-jax")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
