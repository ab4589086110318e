"""safetensors files: what is written opens elsewhere, and parts are read as they lie."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from grre_jax.models.checkpoints.safetensors_files import write_files

VALUES = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "odd-name": np.arange(5, dtype=np.float16),
    "b": np.linspace(-3, 3, 14).astype(ml_dtypes.bfloat16).reshape(7, 2),
}


@pytest.mark.parametrize("limit, count", [(60, 2), (1 << 20, 1)])
def test_what_is_written_opens_with_the_library(tmp_path, limit, count):
    write_files(tmp_path, iter(VALUES.items()), limit)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == count
    found, weight_map = {}, {}
    for file in files:
        tensors = safetensors.numpy.load_file(file)
        found |= tensors
        weight_map |= dict.fromkeys(tensors, file.name)
    assert found.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
    index = tmp_path / "model.safetensors.index.json"
    if count == 1:
        assert not index.exists() and files[0].name == "model.safetensors"
    else:
        assert files[-1].name == f"model-{count:05d}-of-{count:05d}.safetensors"
        total = sum(value.nbytes for value in VALUES.values())
        expected = {"metadata": {"total_size": total}, "weight_map": weight_map}
        assert json.loads(index.read_text()) == expected
