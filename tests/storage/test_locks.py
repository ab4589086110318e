import errno
import fcntl

import pytest

from grre_jax.errors import UsageError
from grre_jax.storage import files


def test_a_lock_is_held_once_and_file_systems_without_locks_are_used(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    with files.exclusive(path, "in use"), pytest.raises(UsageError, match="in use"):
        with files.exclusive(path, "in use"):
            pass
    for number in (*files.NO_LOCKS, errno.EIO):

        def flock(*_, number=number):
            raise OSError(number, "made to fail")

        monkeypatch.setattr(fcntl, "flock", flock)
        if number == errno.EIO:
            with pytest.raises(OSError, match="made to fail"), files.exclusive(path, "in use"):
                pass
        else:
            with files.exclusive(path, "in use"):
                pass
