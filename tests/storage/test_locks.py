import errno
import fcntl

import pytest

from grre_jax.errors import UsageError
from grre_jax.storage import locks


def test_a_lock_is_held_once_and_file_systems_without_locks_are_used(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    with locks.exclusive(path, "in use"), pytest.raises(UsageError, match="in use"):
        with locks.exclusive(path, "in use"):
            pass
    for number in (*locks.NO_LOCKS, errno.EIO):

        def flock(*_, number=number):
            raise OSError(number, "made to fail")

        monkeypatch.setattr(fcntl, "flock", flock)
        if number == errno.EIO:
            with pytest.raises(OSError, match="made to fail"), locks.exclusive(path, "in use"):
                pass
        else:
            with locks.exclusive(path, "in use"):
                pass
