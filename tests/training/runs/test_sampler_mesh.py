"""Devices of the sampler's own: a run samples and trains at the same time, and its numbers are
those of a run that does so in turn. Eight devices of one process, in a process of its own.
"""

import functools

import pytest

from grre_jax.config import MeshConfig

from ... import simulated_devices
from ...run_processes import bits, groups, rows

# Runs `FOLDER MODE STEPS FSDP DATA TENSOR` of two steps ahead: sampling beside training, the two in
# turn on the same devices, or both on the first four.
EIGHT = """
import sys, threading
from concurrent.futures import Future
import jax
from grre_jax import config as c, parallel, reporting
from grre_jax.console import make_console
from grre_jax.training import loop
from grre_jax.training.actors import supply
from grre_jax.training.actors.explorer import Explorer

reporting.report = lambda *_, **__: None
together = threading.Barrier(2, timeout=300)  # a draw and a step that begin at once, or none does
make_mesh, make_step, draw = parallel.make_mesh, loop.make_train_step, Explorer._draw

class InTurn:
    def __init__(self, _): pass
    def submit(self, work, *given):
        done = Future()
        done.set_result(work(*given))
        return done
    def shutdown(self, **_): pass

def run(folder, mode, *numbers):
    steps, fsdp, data, tensor = map(int, numbers)
    begun = []

    def drawn(*given):
        begun.append("draw")
        if begun.count("draw") > 1:  # version 0 comes before the first step
            together.wait()
        return draw(*given)

    def step_like(*given):
        step = make_step(*given)
        def taken(state, *rest):
            begun.append("step")
            if 1 < begun.count("step") < steps:
                together.wait()
            return step(state, *rest)
        taken.lower = step.lower
        return taken

    Explorer._draw, loop.make_train_step = (drawn, step_like) if mode == "beside" else (draw, make_step)
    supply.ThreadPoolExecutor = InTurn if mode == "turns" else threads
    first = jax.devices()[:4] if mode == "shared" else jax.devices()
    parallel.make_mesh = lambda config, devices=None: make_mesh(config, first)
    own = c.SamplerMeshConfig(data, 1, tensor) if mode != "shared" else c.SamplerMeshConfig()
    loop.train(c.Config(
        name=mode, run_dir=folder + "/" + mode, objective=c.ObjectiveConfig("asymre", {"beta": 1.0}),
        model=c.ModelSource(hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8),
        task=c.TaskConfig("arithmetic", {"operands": 2}), regime=c.Regime(sync_offset=1),
        sampling=c.SamplingConfig(group_size=4, max_prompt_tokens=4, max_new_tokens=3),
        training=c.TrainingConfig(steps=steps, prompts_per_step=4), optimizer=c.OptimizerConfig(learning_rate=1e-2),
        evaluation=c.EvaluationConfig(questions=0), checkpoint=c.CheckpointConfig(every=2),
        logging=c.LoggingConfig(tensorboard=False), mesh=c.MeshConfig(fsdp=fsdp, sampler=own)), console=make_console(quiet=True))

threads = supply.ThreadPoolExecutor
for words in sys.argv[2:]:
    run(sys.argv[1], *words.split())
print("done")
"""


def same(folder, one, other):
    """Compares two runs: every row, every group that was sampled, and the last state, bit by
    bit.
    """
    simulated_devices.printed(EIGHT, folder, one, other)
    runs = [folder / words.split()[0] for words in (one, other)]
    for of in (rows, groups, functools.partial(bits, mesh=MeshConfig())):
        assert of(runs[0]) == of(runs[1])


@pytest.mark.slow
def test_a_step_is_taken_while_the_next_batch_is_drawn_and_no_number_differs(tmp_path):
    same(tmp_path, "beside 4 1 4 1", "shared 4 1 4 1")
    losses = {row["loss"] for (kind, _), row in rows(tmp_path / "beside").items()}
    assert len(losses) == 4


@pytest.mark.slow
def test_another_layout_has_the_numbers_of_the_same_devices_in_turn(tmp_path):
    """The learner's parameters are cut in two over fsdp, the sampler's over tensor."""
    same(tmp_path, "beside 12 2 2 2", "turns 12 2 2 2")
