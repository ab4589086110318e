"""A file is replaced whole or not at all."""

import os

import pytest

from grre_jax.storage.files import replace


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("one")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        replace(path, "two")
    assert path.read_text() == "one"
