"""The calls of the sampler that are predicted are those that a run makes."""

import dataclasses

import jax
import pytest

from grre_jax.config import Config
from grre_jax.models.config import ModelConfig
from grre_jax.parallel import mesh as meshes
from grre_jax.planner import compile
from grre_jax.training.actors.calls import ROWS_WITHOUT_LIMIT, fitting, token_bytes, training_call
from grre_jax.training.config.run import override

MODEL = ModelConfig(4096, 256, 768, 4, 8, 4, 32)


def configured(words):
    return override(Config("x"), words.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {"sampler": 16}),
        ("--regime.sync_interval 20", {"sampler": 320}),
        ("--regime.offline true --sampling.prompts_per_call 100", {"sampler": 100}),
        ("--data.path p", {}),
        ("--training.steps 0", {}),
    ],
)
def test_the_programs_of_a_run(words, expected):
    calls = compile.dispatched(configured(words))
    assert calls.pop("step", None) is None
    assert {name: call.prompts for name, call in calls.items()} == expected


@pytest.mark.parametrize(("tensor", "whole"), [(2, 2), (4, 1), (3, 4), (8, 4)])
def test_heads_that_the_axis_does_not_divide_are_whole_on_a_device(tensor, whole):
    assert token_bytes(MODEL, "bfloat16", tensor) == 2 * 4 * whole * 32 * 2


def test_rows_fill_the_memory_beside_weights_and_state():
    """A model of 4.2 M parameters in float32: 4 copies of the state cut in two, one of weights."""
    mesh = jax.sharding.AbstractMesh((1, 2, 1, 1, 1), meshes.AXES)
    config = configured("--sampling.max_prompt_tokens 64 --sampling.max_new_tokens 128")
    used = MODEL.num_parameters * 4 * (4 / 2 + 1)
    # Keys and values of 128 tokens and of half of a prompt's 64, and four copies of the logits.
    row = 2 * 4 * 4 * 32 * 4 * (128 + 32) + 4 * 4 * 4096
    for rows, expected in ((20, 16), (7, 7), (0.5, 1)):
        found = fitting(config, config.sampling, MODEL, mesh, used + row * rows + 1)
        assert found == expected
    assert fitting(config, config.sampling, MODEL, mesh, 0) == ROWS_WITHOUT_LIMIT
    call = training_call(config)
    assert dataclasses.replace(call, rows=16).shape(2, "float32").decode_slots == 16
