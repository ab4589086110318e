"""What is read by one thread does not hold up what another one writes."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import pytest

from grre_jax.training.checkpoints import Checkpoints
from grre_jax.training.step import TrainState


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_thread_may_read_while_another_writes_in_the_background(tmp_path):
    def state(step):
        arrays = {f"a{n}": jnp.full((8, 8), n + step) for n in range(8)}
        return TrainState(arrays, {"m": jnp.zeros(8)}, jnp.int32(step))

    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(0), wait=True)
    over = threading.Event()

    def reading():
        beside = Checkpoints(tmp_path, read_only=True)
        while not over.is_set():
            yield float(beside.restore_params(state(0).params, 0)["a3"].mean())

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor() as threads:
            readers = [threads.submit(list, reading()) for _ in range(2)]
            for step in range(1, 13):
                checkpoints.save(state(step))
            checkpoints.close()
            over.set()
    finally:
        sys.setswitchinterval(before)
    read = [value for reader in readers for value in reader.result(60)]
    assert checkpoints.steps == [0, 11, 12] and len(read) > 5 and set(read) == {3.0}
