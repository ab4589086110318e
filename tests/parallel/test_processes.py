"""What processes do together: in one, and in two that find each other as Slurm's do."""

import json
import os
import subprocess
import sys

import pytest

from .. import simulated_devices

TWO = """
import json, sys
import jax, numpy as np
from grre_jax import parallel
from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import processes

with processes.joined(timeout=300):
    me, out = jax.process_index(), {}
    out["who"] = [jax.process_count(), me, jax.device_count(), processes.many(), processes.is_first()]
    out["numbers"] = processes.gather_ints(10 + me).tolist()
    out["records"] = [[record.decode() for record in part] for part in processes.records([b"a", b"", b"long" * 300][: 3 * me])]
    out["nothing"] = processes.records([])
    ran = []
    processes.on_first(lambda: ran.append(me))
    out["ran"] = ran
    out["returned"] = processes.on_first(lambda: "value")
    for error in (UsageError("field x: wrong ä"), DataError("no file"), OSError(28, "No space left", "/full/file"), OSError("store"), KeyError("k")):
        def fail(error=error):
            raise error
        try:
            processes.on_first(fail)
        except Exception as caught:
            out[repr(error)] = [type(caught).__name__, str(caught)]
    processes.require_same("one", "text")
    try:
        processes.require_same(f"text {me}", "the command line")
    except UsageError as caught:
        out["differs"] = str(caught)
    largest = processes.LargestOf()
    out["largest"] = [largest(number) for number in (0, 3 + me, 0, 0)]
    mesh = parallel.make_mesh(parallel.MeshConfig(fsdp=2))
    cut = parallel.rows(mesh)
    whole = np.arange(24.0, dtype=np.float32).reshape(8, 3)
    x = processes.put(whole, cut)
    out["own"] = processes.own_rows(7).tolist()
    out["fetched"] = bool((processes.fetch(x * 2) == whole * 2).all() and (processes.fetch(processes.put(whole, parallel.replicated(mesh))) == whole).all())
    print(json.dumps(out))
"""


# The first tensor is written; all processes put the others together.
FAILS_TO_SAVE = """
import sys
import jax
from flax import nnx
from grre_jax import models, parallel
from grre_jax.models.checkpoints import export
from grre_jax.models.config import ModelConfig
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import processes
from grre_jax.training import step as state

def fail(folder, tensors, max_file_bytes):
    next(tensors)
    raise OSError(28, "No space left on device", "/full/file")

export.write_files = fail
with processes.joined(timeout=300):
    mesh = parallel.make_mesh(parallel.MeshConfig(fsdp=8))
    shape = ModelConfig(vocab_size=16, hidden_size=16, intermediate_size=32, num_layers=1,
                        num_heads=2, num_kv_heads=2, head_dim=8, eos_ids=(0,))
    model = Transformer(shape, rngs=nnx.Rngs(0))
    state.place(model, mesh)
    models.save(model, FOLDER)
"""


def run_two(script: str) -> tuple[list[int], list[tuple[str, str]]]:
    """Exit statuses, and what is printed and said, of a script in two processes of four devices that find each other by the variables that
    Slurm sets.
    """
    slurm = {"JOB_ID": os.getpid(), "STEP_NODELIST": "localhost", "NTASKS": 2, "STEP_NUM_NODES": 1}
    started = []
    for number in range(2):
        environment = simulated_devices.environment(devices=4)
        for name, value in (slurm | {"PROCID": number, "LOCALID": number}).items():
            environment[f"SLURM_{name}"] = str(value)
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
    texts = [process.communicate(timeout=300) for process in started]
    return [process.returncode for process in started], texts


@pytest.fixture(scope="module")
def two():
    """The JSON line that each of two processes prints."""
    statuses, texts = run_two(TWO)
    assert statuses == [0, 0], texts
    return [
        json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
        for printed, _ in texts
    ]


@pytest.mark.slow
def test_a_full_disk_of_the_first_ends_both_with_its_error(tmp_path):
    statuses, texts = run_two(FAILS_TO_SAVE.replace("FOLDER", repr(str(tmp_path / "model"))))
    assert statuses == [1, 1]
    for _, said in texts:
        assert "No space left on device: '/full/file'" in said
        assert "lost another process" not in said


@pytest.mark.distributed
def test_two_tell_each_other_numbers_and_records(two):
    assert [out["who"] for out in two] == [[2, 0, 8, True, True], [2, 1, 8, True, False]]
    for out in two:
        assert out["numbers"] == [10, 11]
        assert out["records"] == [[], ["a", "", "long" * 300]] and out["nothing"] == [[], []]
        assert out["largest"] == [0, 0, 4, 0]  # a call later


@pytest.mark.distributed
def test_what_the_first_alone_does_fails_in_both(two):
    assert [(out["ran"], out["returned"]) for out in two] == [([0], "value"), ([], None)]
    assert [out["KeyError('k')"] for out in two] == [
        ["KeyError", "'k'"],
        ["DataError", "process 0 failed: KeyError('k')"],
    ]
    for out in two:
        for error, found in {
            "UsageError('field x: wrong ä')": ["UsageError", "field x: wrong ä"],
            "DataError('no file')": ["DataError", "no file"],
            "OSError(28, 'No space left')": ["OSError", "[Errno 28] No space left: '/full/file'"],
            "OSError('store')": ["OSError", "store"],
        }.items():
            assert out[error] == found
        assert "the command line of process 1 differs" in out["differs"]


@pytest.mark.distributed
def test_two_share_arrays(two):
    assert [out["own"] for out in two] == [[0, 2, 4, 6], [1, 3, 5]]
    assert all(out["fetched"] for out in two)
