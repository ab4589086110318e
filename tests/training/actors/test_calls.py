"""The calls of the sampler that are predicted are those that a run makes."""

import dataclasses
from types import SimpleNamespace

import pytest

from grre_jax.config import MeshConfig, SamplerMeshConfig
from grre_jax.errors import UsageError
from grre_jax.planner import compile
from grre_jax.training import preflight, roles
from grre_jax.training.actors.calls import (
    ROWS_WITHOUT_LIMIT,
    fitting,
    idle_sampler,
    training_calls,
)
from grre_jax.training.config.run import (
    Config,
    DataConfig,
    EvaluationConfig,
    SamplingConfig,
    TrainingConfig,
)
from grre_jax.training.data.regime import Regime

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"sampler": 16, "evaluation": 256}),
        (
            {"regime": Regime(sync_interval=20), "sampling": SamplingConfig(prompts_per_call=1920)},
            {"sampler": 320, "evaluation": 256},
        ),
        (
            {"regime": Regime(offline=True), "sampling": SamplingConfig(prompts_per_call=4000)},
            {"sampler": 1600, "evaluation": 256},
        ),
        ({"data": DataConfig(path="p")}, {"evaluation": 256}),
        ({"evaluation": EvaluationConfig(questions=0)}, {"sampler": 16}),
    ],
)
def test_the_programs_of_a_run(fields, expected):
    calls = compile.dispatched(Config("x", **fields))
    assert calls.pop("train step") is None
    assert {name: call.prompts for name, call in calls.items()} == expected


def test_rows_fill_the_memory_beside_weights_and_state():
    """A model of 4.2 M parameters in float32: 4 copies of the state cut in two, one of weights."""
    import jax

    from grre_jax.models.config import ModelConfig

    model = ModelConfig(4096, 256, 768, 4, 8, 4, 32)
    mesh = jax.sharding.AbstractMesh((1, 2, 1, 1), ("data", "fsdp", "tensor", "sequence"))
    config = Config("x", sampling=SamplingConfig(max_prompt_tokens=64, max_new_tokens=128))
    used = model.num_parameters * 4 * (4 / 2 + 1)
    # Keys and values of 128 tokens and of half of a prompt's 64, and four copies of the logits.
    row = 2 * 4 * 4 * 32 * 4 * (128 + 32) + 4 * 4 * 4096
    for rows, expected in ((20, 16), (7, 7), (0.5, 1)):
        found = fitting(config, config.sampling, model, mesh, used + row * rows + 1)
        assert found == expected
    assert fitting(config, config.sampling, model, mesh, 0) == ROWS_WITHOUT_LIMIT
    (call,) = training_calls(config)
    assert dataclasses.replace(call, rows=16).shape(2, "float32").decode_slots == 16


def test_a_program_that_the_run_does_not_call_is_refused():
    with pytest.raises(UsageError, match="--program"):
        compile.compile_run(
            Config("x", data=DataConfig(path="p")), "v5e:2x2", programs=("sampler",)
        )


def test_several_explorers_need_calls_that_they_can_share():
    role = roles.ExplorerRole("a", 0, 2)
    with pytest.raises(UsageError, match="prompts_per_call"):
        roles.explore_run(Config("x"), role)


APART = MeshConfig(sampler=SamplerMeshConfig(4))


@pytest.mark.parametrize(
    ("fields", "processes", "refused"),
    [
        ({}, 1, True),
        ({"data": DataConfig(path="p")}, 1, True),
        ({"regime": Regime(sync_offset=1)}, 2, True),
        ({"regime": Regime(sync_offset=1)}, 1, False),
        ({"mesh": MeshConfig()}, 1, False),
    ],
)
def test_devices_of_the_samplers_own_are_refused_where_they_would_wait(fields, processes, refused):
    training = TrainingConfig(steps=40, prompts_per_step=16)
    config = Config("x", training=training, **{"mesh": APART} | fields)
    found = idle_sampler(config, processes)
    assert bool(found) == refused and (not found or found.startswith("mesh.sampler.data"))


def test_a_run_whose_devices_would_wait_does_not_begin():
    parts = SimpleNamespace(config=Config("x", mesh=APART), task=None)
    with pytest.raises(UsageError, match="mesh.sampler.data"):
        preflight.check(parts, samples=True, contains=())
