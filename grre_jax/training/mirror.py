"""The folder of a run in an object store.

    URL/checkpoints/8/...     files of a checkpoint, as Orbax wrote them
    URL/checkpoints/8.json    enters it: names that folder and its files
    URL/rollouts/...          as `rollouts.storage.object_store` has it

A learner works in a local folder, which a thread copies to the store: data sets and the log first,
then checkpoints, each with its entry last. A learner that is killed at any moment leaves a run that
can be resumed elsewhere, from its last entered checkpoint. Other commands work on a temporary copy
of what they need. A run in a store has one learner, of one process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import processes
from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage.object_store import manifest_lines
from grre_jax.storage import locks
from grre_jax.storage.files import files_below
from grre_jax.storage.remote import Store, is_url, local_folder, temporary_folder
from grre_jax.training.checkpoints.folder import listed

SECONDS = 10.0  # between two copies of what is new
CHECKPOINTS = "checkpoints"
MANIFEST = f"rollouts/{manifest.FILENAME}"
OWN = ("learner.json",)  # files of this machine alone, as hidden ones are

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def opened(folder: str) -> Iterator[Mirror | None]:
    """Gives the mirror of a run's folder, with what the store has of it; None for a path.

    At the end of the block, what is new is copied to the store and the local folder is removed.

    Args:
        folder: path or URL.

    Raises:
        UsageError: another process of this machine trains the run, or the run has several
            processes; or the store's folder is not a run's.
        DataError: the entry of a checkpoint is damaged, or a file of it is missing.
        OSError: the store cannot be read or written.
    """
    if not is_url(folder):
        yield None
        return
    if processes.many():
        raise UsageError(
            f"run_dir: expected a folder that all processes share, got {folder}: a run in an object"
            " store has one process. Mount the bucket, or train on one host"
        )
    mirror = Mirror(folder)
    with mirror.locked():
        mirror.pull()
        try:
            yield mirror
        except BaseException:
            with contextlib.suppress(OSError):  # the block's own error is the one to report
                mirror.close()
            raise
        mirror.close()


@contextlib.contextmanager
def copied(
    folder: str | os.PathLike[str], *, steps: Sequence[int | None] = (), figures: bool = False
) -> Iterator[Path]:
    """Gives the folder of a run on this machine: the path itself, or a temporary copy of what a
    command needs of a URL. Files that the block adds or changes are copied to the URL.

    Args:
        folder: path or URL.
        steps: of the checkpoints that are needed, None for the last.
        figures: the files in other folders than those of checkpoints and rollouts are needed too.

    Raises:
        DataError: the store cannot be read, or lacks one of the checkpoints.
    """
    if not is_url(folder):
        yield Path(folder)
        return
    store = Store(os.fspath(folder))
    with temporary_folder() as temporary:
        copy = Path(temporary) / store.url.rpartition("/")[2]
        copy.mkdir()
        try:
            names = [name for name in store.names() if _kind(name) == "file"]
            store.download([name for name in names if figures or "/" not in name], copy)
            entries = _entered(store)
            last = max(entries, default=None)
            for step in {last if step is None else step for step in steps}:
                if step not in entries:
                    raise DataError(
                        f"{store.url} has no checkpoint of step {step}: it holds"
                        f" {sorted(entries) or 'none'}"
                    )
                _fetch(store, entries[step], copy / CHECKPOINTS / str(step))
        except OSError as error:
            raise DataError(
                f"{store.url} cannot be read ({error}); check its name and your access to it"
            ) from error
        before = _states(copy)
        yield copy
        changed = [name for name, state in _states(copy).items() if before.get(name) != state]
        store.upload([name for name in changed if _kind(name) == "file"], copy)


def steps(folder: str) -> list[int]:
    """Returns the steps of the complete checkpoints of a run, in order.

    Args:
        folder: path or URL of the run.

    Raises:
        OSError: the store cannot be read.
    """
    return sorted(_entered(Store(folder))) if is_url(folder) else listed(Path(folder) / CHECKPOINTS)


class Mirror:
    """The run folder at a URL, and the local folder in which its learner works.

    Args:
        url: of the run's folder.
    """

    def __init__(self, url: str) -> None:
        self._store = Store(url)
        self._folder = local_folder(url)
        self._sent: dict[str, tuple[int, int]] = {}  # states of the files that the store has
        self._lines = b""  # of the manifest in the store
        self._steps: set[int] = set()  # checkpoints that are entered in the store
        self._strays: list[str] = []  # objects that `start` removes
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pushing = threading.Lock()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the local folder, empties it, and removes it at the end.

        Raises:
            UsageError: another process of this machine has it.
        """
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        refusal = (
            f"{self._store.url}: another process of this machine trains this run; stop it first, or"
            " choose another folder with --run-dir"
        )
        with locks.exclusive(self._folder.with_name(f"{self._folder.name}.lock"), refusal):
            shutil.rmtree(self._folder, ignore_errors=True)
            yield
            shutil.rmtree(self._folder, ignore_errors=True)

    def pull(self) -> None:
        """Copies the entered parts of the run to the local folder; the store stays as it is."""
        names = self._store.names()
        files = [name for name in names if _kind(name) == "file"]
        if not files:
            return
        if "config.json" not in files:
            raise UsageError(
                f"{self._store.url} is not the folder of a run (it has {files[0]} and no"
                " config.json): choose another with --run-dir"
            )
        self._folder.mkdir()
        self._store.download([name for name in files if "/" not in name], self._folder)
        # A resumed run writes TensorBoard's files anew from metrics.jsonl.
        self._strays = [name for name in files if name.startswith("tensorboard/")]
        checkpoints = _entered(self._store)
        for step, entry in checkpoints.items():
            _fetch(self._store, entry, self._folder / CHECKPOINTS / str(step))
        self._steps = set(checkpoints)

        self._lines = manifest_lines(self._store, "rollouts/")
        entries = list(manifest.parsed(self._lines.splitlines(), f"{self._store.url}/{MANIFEST} "))
        datasets = {f"rollouts/{e.name}" for e in entries if isinstance(e, manifest.Entry)}
        self._store.download([name for name in names if _folder(name) in datasets], self._folder)
        if self._lines:
            (self._folder / MANIFEST).parent.mkdir(exist_ok=True)
            (self._folder / MANIFEST).write_bytes(self._lines)
        self._sent = _states(self._folder)

        entered = datasets | {entry["folder"] for entry in checkpoints.values()}
        if len(datasets) == len(entries):  # otherwise the manifest is damaged
            sealed = [name for name in names if _kind(name) in ("checkpoint", "data set")]
            self._strays += [name for name in sealed if _folder(name) not in entered]

    def start(self) -> None:
        """Removes from the store what a killed learner left without an entry, and begins to copy
        what is new there, in a thread, until `close`.
        """
        self._store.remove(self._strays)
        self._thread = threading.Thread(target=self._follow, daemon=True, name="mirror")
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.wait(SECONDS):
            try:
                self.push()
            except OSError as error:
                _log.warning("%s cannot be written (%s); trying again", self._store.url, error)

    def close(self) -> None:
        """Copies what is new to the store, for the last time."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self.push()

    def clear(self) -> None:
        """Removes the run from the store, its entries first and its config.json last."""
        with self._pushing:
            names = self._store.names()
            entries = [name for name in names if _kind(name) == "entry"]
            self._store.remove(entries)
            self._store.remove({*names} - {*entries, "config.json"})
            self._store.remove(["config.json"])
            self._sent = {}
            self._lines = b""
            self._steps = set()

    def push(self) -> None:
        """Copies what is new to the store.

        Raises:
            OSError: the store cannot be written; what is entered there is whole.
        """
        with self._pushing:
            # Before the files: those of what it lists are there by then.
            file = self._folder / MANIFEST
            lines = file.read_bytes() if file.exists() else b""
            lines = lines[: lines.rfind(b"\n") + 1]
            states = _states(self._folder)
            changed = [name for name, state in states.items() if self._sent.get(name) != state]
            self._send([name for name in changed if _kind(name) == "data set"], states)
            if lines != self._lines:
                self._store.write(MANIFEST, lines)
                self._lines = lines
            # The log before the checkpoints: a resumed run keeps its rows up to the last.
            self._send([name for name in changed if _kind(name) == "file"], states)
            steps = {int(name.split("/")[1]) for name in states if _kind(name) == "checkpoint"}
            for step in sorted(steps - self._steps):
                self._enter(step)
            for step in sorted(self._steps - steps):
                self._store.remove([f"{CHECKPOINTS}/{step}.json"])
                self._store.remove(self._store.names(f"{CHECKPOINTS}/{step}"))
                self._steps.remove(step)

    def _send(self, names: Sequence[str], states: dict[str, tuple[int, int]]) -> None:
        self._store.upload(names, self._folder)
        self._sent |= {name: states[name] for name in names}

    def _enter(self, step: int) -> None:
        """Copies a checkpoint, unless the run removes it meanwhile."""
        folder = self._folder / CHECKPOINTS / str(step)
        names = files_below(folder)
        try:
            self._store.upload([f"{CHECKPOINTS}/{step}/{name}" for name in names], self._folder)
        except FileNotFoundError:
            return
        if names and files_below(folder) == names:
            entry = {"step": step, "folder": str(step), "files": names}
            self._store.write(f"{CHECKPOINTS}/{step}.json", json.dumps(entry).encode())
            self._steps.add(step)


def _entered(store: Store) -> dict[int, dict[str, Any]]:
    """Returns the entries of the checkpoints by step: `folder` and the names of its `files`.

    Raises:
        DataError: an entry is damaged.
    """
    entries = {}
    for name in store.names(CHECKPOINTS):
        if _kind(name) == "entry":
            try:
                content = json.loads(store.read(name))
                folder = f"{CHECKPOINTS}/{content['folder']}"
                files = [f"{folder}/{file}" for file in content["files"]]
                entries[int(Path(name).stem)] = {"folder": folder, "files": files}
            except (ValueError, TypeError, LookupError) as error:
                raise DataError(
                    f"{store.url}/{name}: damaged ({error!r}); restore it from a copy"
                ) from error
    return entries


def _fetch(store: Store, entry: dict[str, Any], target: Path) -> None:
    """Copies a checkpoint to a local folder. Its arrays are checked when they are read.

    Raises:
        DataError: a file is missing.
        OSError: the store cannot be read.
    """
    with temporary_folder() as temporary:
        try:
            store.download(entry["files"], Path(temporary))
        except FileNotFoundError as error:
            raise DataError(
                f"{store.url}/{entry['folder']}: lacks a file of its entry ({error}); restore it"
                " from a copy"
            ) from error
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(temporary) / entry["folder"], target)


def _folder(name: str) -> str:
    """Returns the first two parts of a name: of a checkpoint's or a data set's file, its folder."""
    return "/".join(name.split("/")[:2])


def _kind(name: str) -> str:
    """Returns the kind of a file of a run: "checkpoint" or "data set" for one of its files, "entry"
    for what enters them, "hidden" for files of this machine alone, "file" for others.
    """
    parts = name.split("/")
    if name in OWN or any(part.startswith(".") or part.endswith(".partial") for part in parts):
        return "hidden"
    if parts[0] == CHECKPOINTS:
        if len(parts) == 2:
            return "entry"
        return "checkpoint" if parts[1].partition("-")[0].isdigit() else "hidden"
    if parts[0] == "rollouts":
        return "entry" if len(parts) == 2 or parts[1] == "manifest" else "data set"
    return "file"


def _states(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns size and time of change of each file below a folder."""
    states = {}
    for name in files_below(folder):
        with contextlib.suppress(FileNotFoundError):  # it is replaced or removed meanwhile
            status = (folder / name).stat()
            states[name] = (status.st_size, status.st_mtime_ns)
    return states
