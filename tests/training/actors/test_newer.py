"""Newer policies are read while a call goes on."""

import threading

import pytest

from grre_jax.training.actors import newer
from grre_jax.training.checkpoints.contents import CheckpointGone


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(newer, "PAUSE", 0.0)


def ask(policies, version):
    """The next policy that is given."""
    while (found := policies(version)) is None:
        pass
    return found


def test_the_newest_is_given_once_it_is_read():
    listed, gate = [0], threading.Event()

    def read(version):
        gate.wait()
        return f"parameters {version}"

    with newer.NewerPolicies(lambda: listed[-1], read) as policies:
        for _ in range(100):
            assert policies(0) is None  # nothing is newer
        listed += [2, 5]
        for _ in range(100):
            assert policies(0) is None  # it is being read
        gate.set()
        assert ask(policies, 0) == ("parameters 5", 5)
        listed.append(9)
        assert ask(policies, 5) == ("parameters 9", 9)


def test_a_policy_that_was_removed_is_left_out():
    listed = iter([3, 4])

    def read(version):
        if version == 3:
            raise CheckpointGone("gone")
        return version

    with newer.NewerPolicies(lambda: next(listed), read) as policies:
        assert ask(policies, 2) == (4, 4)


def test_what_cannot_be_read_is_raised():
    def read(version):
        raise OSError("no such disk")

    with newer.NewerPolicies(lambda: 1, read) as policies, pytest.raises(OSError, match="disk"):
        ask(policies, 0)
