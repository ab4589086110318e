"""Completions do not depend on the batch, the refilling or the devices: 8 devices of one
process, in a process of its own.
"""

import json

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
graph, params = nnx.split(make_model(num_layers=1, vocab_size=48, tie_embeddings=False, eos_ids=(5, 6, 7)))
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

# The distribution with rows and vocabulary cut.
DISTRIBUTION = """
import json, re
from jax.sharding import NamedSharding, PartitionSpec as P
from grre_jax.planner import counts
from grre_jax.parallel import MeshConfig, make_mesh
from grre_jax.parallel.mesh import use
from grre_jax.sampling.distributions.distribution import SamplingDistribution
from grre_jax.sampling_params import SamplingParams

NUMBERS = [(1.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (1.0, 9, 1.0, 0.0), (1.0, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.1), (1.3, 11, 0.9, 0.1)]
MOVES = ("all-gather", "all-to-all", "collective-permute", "collective-broadcast", "all-reduce", "reduce-scatter")
ROWS = 8

def case(config, vocab):
    mesh = make_mesh(config)
    random = np.random.default_rng(vocab)
    logits = (2 * random.normal(size=(ROWS, vocab))).astype(np.float32)
    logits[0, ::3], logits[1] = -np.inf, np.round(logits[1])
    uniforms = random.random((40, ROWS, 2), np.float32)
    divides = vocab % mesh.shape["tensor"] == 0
    placed = jax.device_put(logits, NamedSharding(mesh, P(("data", "fsdp"), "tensor" if divides else None)))
    spread = jax.device_put(uniforms, NamedSharding(mesh, P(None, ("data", "fsdp"))))
    def draw(d, u, x):
        return jax.lax.map(lambda u: d.sample(u, x), u)
    out = {"tokens": 0, "scores": 0.0, "moved": {}}
    with use(mesh):
        d = SamplingDistribution.of(SamplingParams())
        compiled = jax.jit(draw).lower(d, spread, placed).compile()
        for computation in counts.parse(compiled.as_text())[0].values():
            for i in computation.values():
                kind = i.opcode.removesuffix("-start")
                if kind in MOVES:
                    arrays = re.findall(r"\[([\d,]*)\]", i.result)
                    most = max(int(np.prod([int(n) for n in dims.split(",") if n])) for dims in arrays)
                    out["moved"][kind] = max(out["moved"].get(kind, 0), most)
    for numbers in NUMBERS:
        d = SamplingDistribution.of(SamplingParams(*numbers))
        tokens, scores = jax.device_get(compiled(d, spread, placed))
        whole_tokens, whole_scores = jax.device_get(jax.jit(draw)(d, uniforms, logits))
        out["tokens"] += int((tokens != whole_tokens).sum())
        out["scores"] = max(out["scores"], max(float(abs(scores[k] - whole_scores[k]).max()) for k in scores))
    return out

cases = {"cut": (MeshConfig(data=2, fsdp=2, tensor=2), 264), "whole": (MeshConfig(data=2, tensor=4), 1001)}
print(json.dumps({name: case(*c) for name, c in cases.items()}))
"""


@pytest.mark.distributed
def test_completions_and_draws_do_not_depend_on_the_mesh():
    """Nor where the vocabulary divides over the devices, and where it does not and is whole on each:
    of 2,240 draws none falls within rounding of another token.

    Logits are never gathered: devices exchange sums and maxima, the masses of 32 blocks for two
    rows.
    """
    found = json.loads(simulated_devices.printed(EIGHT + DISTRIBUTION, 32))
    assert [found[name]["tokens"] for name in ("cut", "whole")] == [0, 0]
    assert [found[name]["moved"] for name in ("cut", "whole")] == [{"all-reduce": 2 * 32}, {}]
    assert all(case["scores"] < 3e-6 for case in found.values())


@pytest.mark.slow
def test_a_thousand_completions_do_not_depend_on_how_they_are_computed():
    assert simulated_devices.printed(EIGHT, 1000) == "the same 1000"
