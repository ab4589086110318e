"""The run's folder: its lock, its checks, its creation, and its copy in an object store.

    URL/checkpoints/8/...     files of a checkpoint, as Orbax wrote them
    URL/checkpoints/8.json    enters it: names that folder and its files
    URL/rollouts/...          as `rollouts.reader` has it

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
import re
import shutil
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from grre_jax import random_streams
from grre_jax.domains import ConfigError
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import read_object
from grre_jax.parallel import processes
from grre_jax.rollouts import manifest
from grre_jax.storage import files
from grre_jax.storage.files import files_below
from grre_jax.storage.remote import Store, is_url, local_folder, temporary_folder
from grre_jax.training.checkpoints import listed
from grre_jax.training.config.run import RESUMABLE_FIELDS, Config, differences, fields, from_dict

RUN_FILE = "run.json"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes of this machine from training in a run's folder, by a lock beside it,
    which the kernel drops when the process ends, in any way.

    Raises:
        UsageError: another process trains there.
    """
    folder = folder.resolve()
    lock = folder.with_name(f".{folder.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    refusal = (
        f"run folder {folder} is in use by another process: stop that one first, or choose another"
        " with --run-dir"
    )
    with files.exclusive(lock, refusal):
        yield


def require_same_draws(folder: Path) -> None:
    """Checks that this version continues a run's random draws.

    Raises:
        UsageError: the run was begun by a version of grre_jax with other draws.
        DataError: its run.json is damaged.
    """
    file = folder / RUN_FILE
    if not (file.is_file() or listed(folder / "checkpoints")):
        return
    version = read_object(file).get("random_streams") if file.is_file() else None
    if version != random_streams.VERSION:
        raise UsageError(
            f"{file}: expected random_streams {random_streams.VERSION}, got {version!r}: the run"
            " was begun by a version of grre_jax with other random draws. Finish it with that"
            " version, start again with --overwrite, or begin a run from its policy (`grre"
            " export`, then --model.path)"
        )


def open_run_folder(config: Config, *, resume: bool, overwrite: bool) -> Path:
    """Makes, continues or replaces the run's folder, and writes its config.json and run.json.

    Args:
        config: the run.
        resume: continue the run in the folder.
        overwrite: replace the run in the folder.

    Returns:
        The folder.

    Raises:
        UsageError: the folder exists and neither `resume` nor `overwrite` is given; it belongs to
            another configuration or to a version with other random draws; or the run reads files
            that `overwrite` would remove.
        DataError: `resume` of a folder that is not a run.
    """
    folder = config.folder.resolve()
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    free = folder.is_dir() and not any(folder.iterdir())
    if resume:
        require_same_run(config)
        require_same_draws(folder)
    elif folder.exists() and not free:
        if not overwrite:
            raise UsageError(
                f"run folder {config.location} already exists: continue it with --resume, replace"
                " it with --overwrite, or choose another with --run-dir"
            )
        _check_replaceable(config)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files.replace(folder / "config.json", config.to_json())
    if not (folder / RUN_FILE).is_file():
        content = {"id": uuid.uuid4().hex, "random_streams": random_streams.VERSION}
        files.replace(folder / RUN_FILE, json.dumps(content) + "\n")
    return folder


def _check_replaceable(config: Config) -> None:
    """Refuses to remove a folder that is not a run's, or that the new run reads."""
    if not (config.folder / "config.json").is_file():
        raise UsageError(
            f"{config.location} is not the folder of a run (it has no config.json), so --overwrite"
            " leaves it alone: choose another with --run-dir"
        )
    for field in fields(config):
        if field.name in RESUMABLE_FIELDS:  # run_dir, which is the folder itself
            continue
        # Whatever may be a path in a value: FILE.py:FUNCTION=WEIGHT, FOLDER=SHARE, options.
        for path in re.split(r"[\s,='\"{}()]+|:(?!/)", str(field.default)):
            # A word without a slash may be the name of anything.
            if "/" in path and _inside(path, config.location):
                domain = f"paths outside run folder {config.location}, which --overwrite would"
                raise ConfigError(field.name, f"{domain} remove", field.default)


def _inside(path: str, folder: str) -> bool:
    """True if a path or URL is a folder, or is below it."""
    if is_url(path) or is_url(folder):
        return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
    return Path(path).resolve().is_relative_to(Path(folder).resolve())


def load_config(folder: Path) -> Config:
    """Returns the configuration of the run in `folder`.

    Raises:
        DataError: the folder is not a run's, or its config.json cannot be read.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise DataError(f"{folder} is not a run folder: it has no config.json")
    try:
        return from_dict(read_object(file))
    except (UsageError, TypeError, ValueError) as error:
        raise DataError(f"{file}: damaged or of another version: {error}") from error


def split_step(name: str) -> tuple[str, int | None]:
    """Returns ("runs/a", 40) for "runs/a:40"; a path that exists as it is has no step."""
    folder, colon, step = name.rpartition(":")
    if colon and step.isdecimal() and (is_url(name) or not Path(name).exists()):
        return folder, int(step)
    return name, None


def require_same_run(config: Config) -> None:
    """Checks that the run in the folder has this configuration, but for what a resumed run may
    change.

    Raises:
        UsageError: it has another configuration.
        DataError: its configuration is missing or cannot be read.
    """
    stored = load_config(config.folder)
    old, new = (json.loads(c.to_json()) for c in (stored, config))
    changed = [
        name
        for name in differences(old, new)
        if not f"{name}.".startswith(tuple(f"{field}." for field in RESUMABLE_FIELDS))
    ]
    if changed:
        raise UsageError(
            f"run folder {config.location} was made by another configuration (different:"
            f" {', '.join(changed)}): give the same one, or choose another folder with --run-dir"
        )


SECONDS = 10.0  # between two copies of what is new
CHECKPOINTS = "checkpoints"
MANIFEST = f"rollouts/{manifest.FILENAME}"
# Names of files that are not copied as they are: those that enter others, checkpoints, and files of
# this machine alone.
OTHERS = re.compile(rf"{CHECKPOINTS}/|{re.escape(MANIFEST)}$|(.*/)?\.")

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def opened(folder: str) -> Iterator[Mirror | None]:
    """Gives the mirror of a run's folder, with what the store has of it; None for a path.

    At the end of the block, new files are copied to the store and the local folder is removed.

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
            " store has one process"
        )
    mirror = Mirror(folder)
    local = mirror.folder
    with locked(local):
        # Left by a learner that was killed: the run goes on from what the store has.
        shutil.rmtree(local, ignore_errors=True)
        mirror.pull()
        try:
            yield mirror
        finally:
            mirror.close()
        shutil.rmtree(local, ignore_errors=True)


@contextlib.contextmanager
def copied(folder: str | os.PathLike[str], *, steps: Sequence[int | None] = ()) -> Iterator[Path]:
    """Gives the folder of a run on this machine: the path itself, or a temporary copy of what a
    command needs of a URL: the files that are in no other folder, and checkpoints. Files that the
    block adds or changes are copied to the URL.

    Args:
        folder: path or URL.
        steps: of the checkpoints that are needed, None for the last.

    Raises:
        DataError: the store cannot be read, or lacks one of the checkpoints.
    """
    if not is_url(folder):
        yield Path(folder)
        return
    store = Store(os.fspath(folder))
    with temporary_folder() as temporary:
        copy = Path(temporary) / store.url.rpartition("/")[2]
        try:
            entries = _entered(store)
            last = max(entries, default=None)
            needed = {last if step is None else step for step in steps}
            if not needed <= entries.keys():
                raise DataError(
                    f"{store.url}: expected checkpoints of the steps {needed}, got"
                    f" {sorted(entries)}"
                )
            names = [name for name in _plain(store.names()) if "/" not in name]
            for step in needed:
                names += entries[step]
            copy.mkdir()
            store.download(names, copy)
        except OSError as error:
            raise DataError(
                f"{store.url} cannot be read ({error}); check its name and your access to it"
            ) from error
        before = _states(copy)
        yield copy
        changed = [name for name, state in _states(copy).items() if before.get(name) != state]
        store.upload(_plain(changed), copy)


class Mirror:
    """The run folder at a URL, and the local folder in which its learner works.

    Args:
        url: of the run's folder.

    Attributes:
        folder: the local folder.
    """

    def __init__(self, url: str) -> None:
        self.folder = local_folder(url)
        self._store = Store(url)
        self._sent: dict[str, tuple[int, int]] = {}  # states of the files that the store has
        self._steps: set[int] = set()  # checkpoints that are entered in the store
        self._lines = b""  # of the manifest in the store
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def pull(self) -> None:
        """Copies the entered parts of the run to the local folder; the store stays as it is."""
        names = self._store.names()
        plain = _plain(names)
        if not plain:
            return
        if "config.json" not in plain:
            raise UsageError(
                f"{self._store.url} is not the folder of a run (it has {plain[0]} and no"
                " config.json): choose another with --run-dir"
            )
        checkpoints = _entered(self._store)
        self._steps = set(checkpoints)
        # The manifest too, which enters the data sets.
        needed = [name for name in names if name.startswith("rollouts/")]
        needed += [name for name in plain if "/" not in name]
        for of_step in checkpoints.values():
            needed += of_step
        self.folder.mkdir()
        # The arrays of checkpoints are checked when they are read.
        self._store.download(needed, self.folder)
        self._sent = _states(self.folder)

    def start(self) -> None:
        """Begins to copy new files to the store, in a thread, until `close`."""
        # A resumed run writes TensorBoard's files anew from metrics.jsonl.
        self._store.remove(self._store.names("tensorboard"))
        self._thread = threading.Thread(target=self._follow, daemon=True, name="mirror")
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.wait(SECONDS):
            try:
                self.push()
            except OSError as error:
                _log.warning("%s cannot be written (%s); trying again", self._store.url, error)

    def close(self) -> None:
        """Copies new files to the store, for the last time.

        Raises:
            OSError: the store cannot be written; names the local folder.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            try:
                self.push()
            except OSError as error:
                raise OSError(
                    f"{self._store.url} cannot be written ({error}): the newest files are in"
                    f" {self.folder} alone, which the next start of the run removes: copy that"
                    " folder first"
                ) from error

    def clear(self) -> None:
        """Removes the run from the store before `start`, its config.json last."""
        self._store.remove({*self._store.names()} - {"config.json"})
        self._store.remove(["config.json"])
        self._sent = {}
        self._steps = set()
        self._lines = b""

    def push(self) -> None:
        """Copies new files to the store.

        Raises:
            OSError: the store cannot be written; the files entered there are whole.
        """
        # Before the listing: the data that a checkpoint needs was sealed before it.
        steps = {*listed(self.folder / CHECKPOINTS)}
        # Before the files: those of what it lists are there by then.
        listing = self.folder / MANIFEST
        lines = listing.read_bytes() if listing.exists() else b""
        # A line that is still being appended is sent with the next copy.
        lines = lines[: lines.rfind(b"\n") + 1]
        states = _states(self.folder)
        changed = {name: state for name, state in states.items() if self._sent.get(name) != state}
        # The log too before the checkpoints: a resumed run keeps its rows up to the last.
        new = _plain(changed)
        self._store.upload(new, self.folder)
        # After the upload: what failed is sent again.
        self._sent |= {name: states[name] for name in new}
        if lines != self._lines:
            self._store.write(MANIFEST, lines)
            self._lines = lines
        for step in sorted(steps - self._steps):
            self._enter(step)
        for step in sorted(self._steps - steps):
            # The entry first: none ever names files that are gone.
            self._store.remove([f"{CHECKPOINTS}/{step}.json"])
            self._store.remove(self._store.names(f"{CHECKPOINTS}/{step}"))
            self._steps.remove(step)

    def _enter(self, step: int) -> None:
        """Copies a checkpoint, unless the run removes it meanwhile."""
        folder = self.folder / CHECKPOINTS / str(step)
        names = files_below(folder)
        try:
            self._store.upload([f"{CHECKPOINTS}/{step}/{name}" for name in names], self.folder)
        except FileNotFoundError:
            return
        if names and files_below(folder) == names:
            entry = {"step": step, "files": names}
            self._store.write(f"{CHECKPOINTS}/{step}.json", json.dumps(entry).encode())
            self._steps.add(step)


def _entered(store: Store) -> dict[int, list[str]]:
    """Returns the names of the files of the checkpoints by step.

    Raises:
        DataError: an entry is damaged, or a file of it is missing.
    """
    entries = {}
    names = store.names(CHECKPOINTS)
    for name in names:
        if name.count("/") > 1:
            continue
        try:
            step = int(Path(name).stem)
            of_step = json.loads(store.read(name))["files"]
            entries[step] = [f"{CHECKPOINTS}/{step}/{file}" for file in of_step]
            if missing := set(entries[step]).difference(names):
                raise LookupError(f"missing files: {missing}")
        except (ValueError, TypeError, LookupError) as error:
            raise DataError(
                f"{store.url}/{name}: damaged ({error!r}); restore it from a copy"
            ) from error
    return entries


def _plain(names: Collection[str]) -> list[str]:
    """Returns the names of files that are copied as they are."""
    return [name for name in names if not OTHERS.match(name)]


def _states(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns size and time of change of each file below a folder."""
    states = {}
    for name in files_below(folder):
        with contextlib.suppress(FileNotFoundError):  # it is replaced or removed meanwhile
            status = (folder / name).stat()
            # The size is not enough: files are rewritten at the same one.
            states[name] = (status.st_size, status.st_mtime_ns)
    return states
