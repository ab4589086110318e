"""Loading and saving shard by shard: how little the host holds, in a process of its own."""

import pytest
import safetensors.numpy

from grre_jax import models
from grre_jax.models.checkpoints import export

from ...simulated_devices import printed

# A bfloat16 checkpoint of 130 MB in several files, whose tensors are small against its parameters:
# what is stacked on the host is seen.
SHAPE = dict(
    vocab_size=4096,
    hidden_size=1024,
    intermediate_size=4096,
    num_layers=4,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
)
FILE_BYTES = 24 << 20
WEIGHED = """
import gc, sys, tracemalloc
from pathlib import Path
import jax
from grre_jax import models
from grre_jax.models.checkpoints import export

folder, output, file_bytes = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
export.MAX_FILE_BYTES = int(file_bytes)
for again in range(2):  # the first time imports and compiles
    tracemalloc.start()
    model = jax.block_until_ready(models.load(folder, dtype="bfloat16"))
    load = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    models.save(model, output / str(again))
    save = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del model
    gc.collect()
print(max(load, save))
"""


@pytest.mark.slow
def test_the_host_holds_no_more_than_a_tensor_and_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "MAX_FILE_BYTES", FILE_BYTES)
    model = models.init(models.ModelConfig(**SHAPE), dtype="bfloat16")
    files = sorted(models.save(model, tmp_path / "stored").glob("*.safetensors"))
    sizes = [file.stat().st_size for file in files]
    assert len(files) > 4 and max(sizes) < FILE_BYTES + (1 << 16)
    tensors = [x.nbytes for file in files for x in safetensors.numpy.load_file(file).values()]
    most = int(printed(WEIGHED, tmp_path / "stored", tmp_path, FILE_BYTES))
    assert most < 1.5 * max(tensors) + max(sizes)
    for file in files:
        assert file.read_bytes() == (tmp_path / "1" / file.name).read_bytes()
