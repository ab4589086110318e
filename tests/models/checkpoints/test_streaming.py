"""Loading and saving shard by shard: what lands where, how often it compiles, and how little of
it the host holds. Eight devices, in processes of their own.
"""

import json
from pathlib import Path

import pytest
import safetensors.numpy

from grre_jax import models
from grre_jax.models.checkpoints import export

from ...simulated_devices import printed

STORED = Path(__file__).parents[1] / "fixtures"

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
RUNTIME_BYTES = 150 << 20  # what compilation and the runtime's own buffers add to a process
WEIGHED = """
import gc, json, resource, sys, tracemalloc
from pathlib import Path
import jax
from grre_jax import models
from grre_jax.models.checkpoints import export

folder, output, file_bytes = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def resident(call):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return call(), 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

def traced(call):
    tracemalloc.start()
    result = call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return result, peak

found = {}
export.MAX_FILE_BYTES = int(file_bytes)
for weigh in (resident, traced):  # what a process had most of is seen once
    model, load = weigh(lambda: jax.block_until_ready(models.load(folder, dtype="bfloat16")))
    _, save = weigh(lambda: models.save(model, output / weigh.__name__))
    found[weigh.__name__] = {"load": load, "save": save, "model": sum(x.nbytes for x in models.parameters(model).values())}
    del model
    gc.collect()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_host_holds_no_more_than_a_tensor_and_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "MAX_FILE_BYTES", FILE_BYTES)
    model = models.init(models.ModelConfig(**SHAPE), dtype="bfloat16")
    files = sorted(models.save(model, tmp_path / "stored").glob("*.safetensors"))
    sizes = [file.stat().st_size for file in files]
    assert len(files) > 4 and max(sizes) < FILE_BYTES + (1 << 16)
    tensors = [x.nbytes for file in files for x in safetensors.numpy.load_file(file).values()]
    bound = 1.5 * max(tensors) + max(sizes)
    found = json.loads(printed(WEIGHED, tmp_path / "stored", tmp_path, FILE_BYTES))
    traced, resident = found["traced"], found["resident"]
    assert traced["load"] < bound and traced["save"] < bound, traced
    # And the whole process holds the model, that much, and what every process does.
    assert resident["load"] < resident["model"] + bound + RUNTIME_BYTES, resident
    assert resident["save"] < bound + RUNTIME_BYTES, resident
    for file in files:
        for again in ("traced", "resident"):
            assert file.read_bytes() == (tmp_path / again / file.name).read_bytes()
