"""Completions do not depend on the batch, the refilling or the devices: 8 devices of one
process, in a process of its own.
"""

import pytest

from .. import simulated_devices

EIGHT = """
import sys
import jax, numpy as np
from flax import nnx
from grre_jax import parallel, sampling
from grre_jax.parallel import mesh as meshes
from tests.sampling.conftest import make_model

COUNT = int(sys.argv[1])
SAMPLES = 4
TIME = 40 if COUNT > 100 else 20
graph, params = nnx.split(make_model(num_layers=1, vocab_size=48, tie_embeddings=False, eos_ids=(5,)))
draw = np.random.default_rng(0)
prompts = [draw.integers(1, 48, draw.integers(1, 9)).tolist() for _ in range(COUNT // SAMPLES)]
positions = np.arange(len(prompts))


def call(mesh=None, order=None, size=None, slots=None, **options):
    held = params if mesh is None else jax.device_put(params, meshes.tree_shardings(params, mesh))
    order, size, parts = positions if order is None else order, size or len(prompts), []
    with meshes.use(mesh):
        weights = sampling.prepared(nnx.merge(graph, held))
        for start in range(0, len(order), size):
            some = order[start : start + size]
            given = {"group_size": SAMPLES, "key": jax.random.key(1), "positions": some, "max_concurrent": slots}
            drawn = sampling.SamplingParams(max_new_tokens=TIME, **options)
            parts.append(jax.device_get(sampling.sample(weights, [prompts[i] for i in some], drawn, **given)))
    whole = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return jax.tree.map(lambda x: x[np.argsort(order)], whole)


ways = {
    "in parts": dict(size=16),
    "refilled, backwards": dict(slots=64, order=positions[::-1]),
    "data 8": dict(mesh=dict(data=8)),
    "fsdp 4, tensor 2": dict(mesh=dict(data=1, fsdp=4, tensor=2)),
    "data 2, fsdp 2, tensor 2, refilled": dict(mesh=dict(data=2, fsdp=2, tensor=2), slots=64),
}
draws = ({"temperature": 0.8, "top_p": 0.9, "top_k": 30, "min_p": 0.01}, {}, {"temperature": 0.0})
if COUNT < 100:  # a compilation for each
    draws = draws[:1]
    ways = {"refilled on a mesh": dict(mesh=dict(data=2, fsdp=2, tensor=2), slots=8, order=positions[::-1])}
for options in draws:
    expected = call(**options)
    assert expected.lengths.size == COUNT // SAMPLES * SAMPLES and len(np.unique(expected.lengths)) > 5
    for name, way in ways.items():
        mesh = parallel.make_mesh(parallel.MeshConfig(**way["mesh"])) if "mesh" in way else None
        got = call(**way | {"mesh": mesh} | options)
        different = int(((got.tokens != expected.tokens).any(-1) | (got.lengths != expected.lengths)).sum())
        assert different == 0, (options, name, different)
        np.testing.assert_allclose(got.policy_logprobs, expected.policy_logprobs, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(got.sampling_logprobs, expected.sampling_logprobs, atol=1e-4, err_msg=name)
print("the same", COUNT)
"""


@pytest.mark.parametrize("count", [32, pytest.param(1000, marks=pytest.mark.slow)])
def test_completions_do_not_depend_on_how_they_are_computed(count):
    assert simulated_devices.printed(EIGHT, count) == f"the same {count}"
