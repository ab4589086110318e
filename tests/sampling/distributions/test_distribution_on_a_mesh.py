"""The distribution with rows and vocabulary cut over eight simulated devices, in a process of
their own.
"""

import json

import pytest

from ... import simulated_devices

EIGHT = """
import json, re, sys
import jax, jax.numpy as jnp, numpy as np
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


@pytest.fixture(scope="module")
def eight():
    return json.loads(simulated_devices.printed(EIGHT))


# A vocabulary that divides over the devices, and one that does not and is whole on each.
@pytest.mark.parametrize("name", ["cut", "whole"])
def test_tokens_do_not_depend_on_the_mesh(eight, name):
    """Of 2,240 draws none falls within rounding of another token.

    Logits are never gathered: devices exchange sums and maxima, the masses of 32 blocks for two
    rows.
    """
    got = eight[name]
    assert got["tokens"] == 0 and got["scores"] < 3e-6
    assert got["moved"] == ({"all-reduce": 2 * 32} if name == "cut" else {})
