"""What is read by one thread does not hold up what another one writes."""

import sys
import threading

import jax.numpy as jnp
import pytest

from grre_jax.training.checkpoints.folder import Checkpoints, Keep
from grre_jax.training.state import TrainState


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_thread_may_read_while_another_writes_in_the_background(tmp_path):
    def state(step):
        return TrainState(
            {f"a{n}": jnp.full((8, 8), n + step) for n in range(8)},
            {"m": jnp.zeros(8)},
            jnp.int32(step),
        )

    checkpoints = Checkpoints(tmp_path / "c", Keep())
    over = threading.Event()
    read = []
    before = sys.getswitchinterval()
    checkpoints.save(state(0), wait=True)

    def reading():
        beside = Checkpoints(tmp_path / "c", Keep(), read_only=True)
        while not over.is_set():
            read.append(float(beside.restore_params(state(0).params, 0)["a3"].mean()))

    readers = [threading.Thread(target=reading, daemon=True) for _ in range(2)]
    sys.setswitchinterval(1e-4)
    try:
        for reader in readers:
            reader.start()
        for step in range(1, 13):
            checkpoints.save(state(step))
        checkpoints.close()
    finally:
        over.set()
        sys.setswitchinterval(before)
    for reader in readers:
        reader.join(60)
    assert checkpoints.steps == [0, 11, 12] and len(read) > 5 and set(read) == {3.0}
