"""Meshes, shardings, and the processes of a run."""

from grre_jax.parallel.mesh import MeshConfig as MeshConfig
from grre_jax.parallel.mesh import make_mesh as make_mesh
from grre_jax.parallel.mesh import replicated as replicated
from grre_jax.parallel.mesh import row_devices as row_devices
from grre_jax.parallel.mesh import rows as rows
from grre_jax.parallel.mesh import tree_shardings as tree_shardings
