"""The mesh and the layout rules: on this machine's device, and on eight simulated ones in a
process of their own.
"""

import json

import pytest
from jax.sharding import PartitionSpec as P

from grre_jax.parallel.mesh import AXES

from .. import simulated_devices

EIGHT = """
import json
import jax, jax.numpy as jnp, numpy as np, optax
from grre_jax.parallel import MeshConfig, make_mesh, row_devices, rows, tree_shardings
out = {}
out["default"] = dict(make_mesh(MeshConfig()).shape)
mesh = make_mesh(MeshConfig(fsdp=2, tensor=2))
out["cut"], out["row_devices"] = dict(mesh.shape), row_devices(mesh)
out["some"] = dict(make_mesh(MeshConfig(tensor=2), devices=jax.devices()[:4]).shape)
for name, config in {"three": MeshConfig(fsdp=3), "four": MeshConfig(data=4), "sixteen": MeshConfig(data=1, fsdp=16)}.items():
    try:
        make_mesh(config)
    except ValueError as error:
        out[name] = str(error)
params = {
    "embed": jnp.arange(128.0).reshape(16, 8),
    "layers": {"qkv_proj": jnp.zeros((3, 8, 4)), "o_proj": jnp.zeros((3, 4, 8)), "attn_norm": jnp.zeros((3, 8)), "down_proj": jnp.zeros((3, 7, 4))},
    "head": jnp.zeros((17, 8)),
}
def specs(tree):
    return {jax.tree_util.keystr(k): str(s.spec) for k, s in jax.tree_util.tree_leaves_with_path(tree_shardings(tree, mesh))}
out["params"] = specs(params)
state = optax.adamw(1e-3).init(params)
out["state"] = specs(state)
placed = jax.device_put(params, tree_shardings(params, mesh))
out["pieces"] = [list(s.data.shape) for s in placed["layers"]["qkv_proj"].addressable_shards]
out["rows"] = [list(s.data.shape) for s in jax.device_put(jnp.zeros((3, 8, 5)), rows(mesh, axis=1)).addressable_shards]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def eight():
    return json.loads(simulated_devices.printed(EIGHT))


def test_eight_devices_make_meshes_and_cut_by_the_rules(eight):
    for name, *shape in (
        ("default", 8, 1, 1, 1, 1),
        ("cut", 2, 2, 1, 2, 1),
        ("some", 2, 1, 1, 2, 1),
    ):
        assert eight[name] == dict(zip(AXES, shape, strict=True))
    assert eight["row_devices"] == 4
    specs = {
        "['embed']": P("tensor", "fsdp"),
        "['layers']['qkv_proj']": P(None, "fsdp", "tensor"),
        "['layers']['o_proj']": P(None, "tensor", "fsdp"),
        "['layers']['attn_norm']": P(),
        # A dimension that does not divide stays whole.
        "['head']": P(None, "fsdp"),
        "['layers']['down_proj']": P(None, None, "fsdp"),
    }
    assert eight["params"] == {name: str(spec) for name, spec in specs.items()}
    assert eight["pieces"] == [[3, 4, 2]] * 8
    assert eight["rows"] == [[3, 2, 5]] * 8
    # The optimiser is cut like its parameters.
    moments = [spec for name, spec in eight["state"].items() if "qkv_proj" in name]
    assert moments == [str(P(None, "fsdp", "tensor"))] * 2


def test_eight_devices_refuse_other_products(eight):
    for name, shape in {
        "three": "data=2 x fsdp=3 x expert=1 x tensor=1",
        "four": "data=4 x fsdp=1 x expert=1 x tensor=1",
        "sixteen": "data=1 x fsdp=16",
    }.items():
        assert shape in eight[name]
