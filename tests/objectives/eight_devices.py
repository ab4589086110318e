"""Losses and gradients of batches that are cut over eight simulated devices, for test_invariances:
a process of its own that answers a pickled case on stdin with what `Together` gives on stdout.
"""

import pickle
import sys

import jax

from grre_jax import parallel

from .all_objectives import KINDS, Together, every_objective


def serve(received, sent):
    mesh = parallel.make_mesh(parallel.MeshConfig(data=2, fsdp=2, tensor=2))
    chosen = every_objective()
    with jax.enable_x64(True):
        together = Together({name: chosen[name] for name in KINDS})
        while True:
            try:
                case = pickle.load(received)
            except EOFError:
                return
            numbers, *arrays, index, part = together.arguments(case)
            placed = jax.device_put(arrays, parallel.rows(mesh))
            pickle.dump(jax.device_get(together.compute(numbers, *placed, index, part)), sent)
            sent.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
