"""Losses and gradients of sharded batches on eight simulated devices, for test_invariances: a
process of its own that answers over pipes.

Each message on stdin is a pickled (name of a group of objectives, their names, case, layout);
each answer on stdout what `Together` gives.
"""

import pickle
import sys

import jax

from grre_jax import parallel

from .all_objectives import Together, every_objective

# The mesh, and whether response arrays are cut over it as token arrays are.
LAYOUTS = {
    "data": (parallel.MeshConfig(data=8), False),
    "data, fsdp and tensor": (parallel.MeshConfig(data=2, fsdp=2, tensor=2), True),
}


def laid_out(tree, layout: str):
    """Arrays laid out over the mesh: [responses, time] by rows, [responses] by rows or whole."""
    config, cut_responses = LAYOUTS[layout]
    mesh = parallel.make_mesh(config)
    by_rows, whole = parallel.rows(mesh), parallel.replicated(mesh)
    return jax.tree.map(
        lambda array: jax.device_put(array, by_rows if array.ndim == 2 or cut_responses else whole),
        tree,
    )


def serve(received, sent):
    computed, every = {}, every_objective(parts=True)
    with jax.enable_x64(True):
        while True:
            try:
                group, names, case, layout = pickle.load(received)
            except EOFError:
                return
            chosen = {name: every[name] for name in names}
            together = computed.setdefault(group, Together(chosen))
            numbers, logprobs, fields, keys, *_ = together.arguments(case)
            logprobs, fields, keys = laid_out((logprobs, fields, keys), layout)
            answer = jax.device_get(together.compute(numbers, logprobs, fields, keys, None, None))
            pickle.dump(answer, sent)
            sent.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
