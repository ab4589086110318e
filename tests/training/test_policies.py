"""A run that lacks a file, or has a damaged one, is not exported. (cli/test_entry.py exports.)"""

import shutil

import pytest

from grre_jax.errors import DataError
from grre_jax.training import policies


@pytest.mark.parametrize(
    "name, text",
    [("config.json", b"{"), ("provenance.json", b"{}"), ("checkpoints", None)],
)
def test_what_is_missing_or_damaged_is_named(copy, tmp_path, name, text):
    if text is None:
        shutil.rmtree(copy / name)
    else:
        (copy / name).write_bytes(text)
    with pytest.raises(DataError, match=name.removesuffix("s")):
        policies.export(copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()
