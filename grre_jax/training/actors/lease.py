"""Leases of the roles in a run's folder: one learner, and one explorer per name.

A holder has two marks. A lock of the operating system (flock), which the kernel drops when the
process dies: on one machine it alone decides, and a killed process is replaced at once. And a file
that names the holder, with a fencing token and a counter of beats that is renewed in the
background: on storage that several machines share, where a lock of another machine may not be
visible, a holder whose counter does not change for the lease's length is taken for dead. Clocks of
two machines are never compared.

    RUN/learner.json, RUN/.learner.lock; RUN/explorers/NAME.json, RUN/explorers/.NAME.lock
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.storage.files import replace
from grre_jax.storage.locks import NO_LOCKS, machine

SECONDS = 30.0  # after which a holder on another machine without a beat is taken for dead


class Lease:
    """A context that holds a role.

    Args:
        file: the JSON file that names the holder; its folder is made if absent.
        role: in words, for messages ("a learner").
        seconds: without a beat, after which a holder elsewhere is taken for dead.
        console: where to report that a former holder is watched.
        details: further fields of the file.

    Raises:
        UsageError: at `__enter__`, if another process holds the role.
    """

    def __init__(
        self,
        file: Path,
        role: str,
        *,
        seconds: float = SECONDS,
        console: Any = None,
        **details: Any,
    ):
        self.file, self.role = file, role
        self._seconds, self._console, self._details = seconds, console, details
        self._lock_file = lock_file(file)
        self._owner = uuid.uuid4().hex
        self._end, self._guard = threading.Event(), threading.Lock()
        self._lost = ""

    def __enter__(self) -> Lease:
        self._lock_file.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            locks = self._lock()
            before = read(self.file) or {}
            last = int(before.get("token", 0))
            here = locks and before.get("machine") == machine()
            if before and not before.get("ended") and not here:
                self._watch(before)
            self._content = {
                "token": last + 1,
                "owner": self._owner,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "machine": machine(),
                "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "beats": 0,
                "ended": False,
                **self._details,
            }
            self._write()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        with self._guard, contextlib.suppress(OSError):  # the folder may have been removed
            if not self._taken():
                self._content["ended"] = True
                self._write()
        os.close(self._descriptor)

    @property
    def token(self) -> int:
        """Number of holders that the role has had, this one included."""
        return self._content["token"]

    def update(self, **details: Any) -> None:
        """Changes fields of the file; they are written with the next beat."""
        with self._guard:
            self._content |= details

    def check(self) -> None:
        """Checks that this process still holds the role; called before anything is published.

        Raises:
            DataError: another process took it over, or the folder was removed.
        """
        with self._guard:
            self._lost = self._lost or self._taken()
        if self._lost:
            raise DataError(
                f"{self._lost}: this process was silent for too long, or its folder was replaced;"
                " it stops and publishes nothing more"
            )

    def _lock(self) -> bool:
        """Takes the operating system's lock; returns False if the file system has no locks."""
        for _ in range(3):  # `is_held` of another process holds it for a moment
            taken = _flock(self._descriptor, fcntl.LOCK_EX)
            if taken is not False:
                return bool(taken)
            time.sleep(0.1)
        raise self._refused(read(self.file))

    def _watch(self, before: dict[str, Any]) -> None:
        """Waits for the lease's length; raises UsageError once the former holder beats."""
        if self._console is not None:
            self._console.print(
                f"{_described(before)} held {self.role}'s lease: watching for {self._seconds:g} s"
                " whether it lives"
            )
        if _beating({self.file: _beat(before)}, self._seconds):
            raise self._refused(read(self.file))

    def _refused(self, holder: dict[str, Any] | None) -> UsageError:
        return UsageError(
            f"{self.file.parent} already has {self.role}: {_described(holder)}; stop that one"
            " first, or choose another folder or name"
        )

    def _taken(self) -> str:
        """Returns why this process no longer holds the role, or ""."""
        holder = read(self.file)
        if holder is None:  # a file that cannot be read for a moment proves nothing
            return "" if self.file.exists() else f"{self.file} was removed"
        if holder.get("owner") == self._owner:
            return ""
        token = holder.get("token")
        return f"{_described(holder)} took over (token {token}, after {self.token})"

    def _renew(self) -> None:
        while not self._end.wait(self._seconds / 3):
            # A full disk does not end the lease: the holder's own writes fail.
            with self._guard, contextlib.suppress(OSError):
                self._lost = self._lost or self._taken()
                if self._lost:
                    return
                self._content["beats"] += 1
                self._write()

    def _write(self) -> None:
        replace(self.file, json.dumps(self._content, indent=2) + "\n")


def _described(holder: dict[str, Any] | None) -> str:
    if not holder:
        return "another process"
    return f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('started')}"


def living(files: Iterable[Path], *, seconds: float = SECONDS, console: Any = None) -> list[Path]:
    """Returns the files whose roles a process holds: on this machine by their locks, on others by
    their counters, which are watched together until one of them changes.

    Args:
        files: JSON files of roles.
        seconds: the lease's length.
        console: where to report that holders are watched.
    """
    states = {file: is_held(file) for file in files}
    found = {file for file, state in states.items() if state}
    watched = {file: _beat(read(file)) for file, state in states.items() if state is None}
    if watched and not found:
        if console is not None:
            names = ", ".join(file.stem for file in watched)
            console.print(f"watching for {seconds:g} s whether {names} lives", highlight=False)
        found = _beating(watched, seconds)
    return [file for file in states if file in found]


def _beating(marks: dict[Any, Any], seconds: float) -> set[Path]:
    """Watches roles' files for the lease's length; returns, as soon as there are any, those whose
    marks changed.
    """
    until, found = time.monotonic() + seconds, set()
    while not found and time.monotonic() < until:
        time.sleep(min(1.0, seconds / 10))
        for file, mark in marks.items():
            now = read(file)
            if now and not now.get("ended") and _beat(now) != mark:
                found.add(file)
    return found


def _beat(holder: dict[str, Any] | None) -> tuple[Any, Any]:
    """Returns what changes with every beat."""
    holder = holder or {}
    return holder.get("owner"), holder.get("beats")


def is_held(file: Path) -> bool | None:
    """True if a process of this machine holds a role; None if its lock is not visible here."""
    found = read(file)
    if not found or found.get("ended"):
        return False
    if found.get("machine") != machine():
        return None
    try:
        descriptor = os.open(lock_file(file), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two processes at this point do not take each other for the holder.
        free = _flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)
    return None if free is None else not free


def _flock(descriptor: int, kind: int) -> bool | None:
    """Returns that the lock was taken; False if another process has it, None without locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


def lock_file(file: Path) -> Path:
    """Returns the file that is locked for a role's JSON file."""
    return file.with_name(f".{file.stem}.lock")


def read(file: Path) -> dict[str, Any] | None:
    """Returns the content of a role's file; None if it is missing or cannot be read."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
