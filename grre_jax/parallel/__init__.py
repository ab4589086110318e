"""Meshes, shardings, and the processes of a run."""

from grre_jax.parallel.mesh import (
    MeshConfig as MeshConfig,
    make_mesh as make_mesh,
    replicated as replicated,
    row_devices as row_devices,
    rows as rows,
    tree_shardings as tree_shardings,
)
