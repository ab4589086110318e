"""safetensors files: what is written opens elsewhere, and parts are read as they lie."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from grre_jax.models.checkpoints.safetensors_files import SafetensorsSource, Tensor, write_files

VALUES = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "odd-name": np.arange(5, dtype=np.float16),
    "b": np.linspace(-3, 3, 14).astype(ml_dtypes.bfloat16).reshape(7, 2),
}
TENSORS = [Tensor(name, value.shape, value.dtype) for name, value in VALUES.items()]


@pytest.mark.parametrize("limit", [1, 60, 1 << 20])
def test_what_is_written_opens_with_the_library(tmp_path, limit):
    write_files(tmp_path, TENSORS, VALUES.values(), limit)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == {1: 3, 60: 2, 1 << 20: 1}[limit]
    found = {}
    for file in files:
        found |= safetensors.numpy.load_file(file)
        length = int.from_bytes(file.read_bytes()[:8], "little")
        assert (8 + length) % 8 == 0  # tensors begin aligned
    assert found.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (len(files) > 1)
    if index.exists():
        values = json.loads(index.read_text())
        assert (
            values["metadata"]["total_size"] == 12 * 4 + 5 * 2 + 14 * 2
            and values["weight_map"].keys() == VALUES.keys()
        )


def test_parts_are_read_in_the_stored_dtype(tmp_path):
    write_files(tmp_path, TENSORS, VALUES.values(), 60)
    source = SafetensorsSource(tmp_path)
    assert (
        source.names() == set(VALUES)
        and source.shape("b") == (7, 2)
        and source.file("b").name == "model-00002-of-00002.safetensors"
    )
    for name, index in (
        ("a", (slice(1, 3), slice(0, 4, 1))),
        ("b", (slice(2, 6), slice(1, 2))),
        ("odd-name", (slice(None),)),
    ):
        part = source.read(name, index)
        assert part.dtype == VALUES[name].dtype
        np.testing.assert_array_equal(part, VALUES[name][index])
