"""Training of low-rank terms alone: exact gradients, an untouched base, small checkpoints, whole
runs and what they export.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import models, objectives
from grre_jax.cli import entry
from grre_jax.errors import UsageError
from grre_jax.models.lora import LoraConfig
from grre_jax.training import build, loop, policies, state as training_state
from grre_jax.training.data.pack import BatchShape, pack
from grre_jax.training.export import write_model
from grre_jax.training.step import loss_and_gradient

from ...run_processes import logprobs, quiet
from ..test_step import CONFIG

pytestmark = pytest.mark.usefixtures("no_reports")

SHAPE = dataclasses.replace(CONFIG, num_layers=2)
LORA = LoraConfig(2, 6.0, ("q_proj", "o_proj", "gate_proj", "down_proj"))
BATCH = BatchShape.of_run(3, 3, 4, 6, 28, rows=1)
OBJECTIVE = objectives.algorithm("grpo", kl_coef=0.5, kl_estimator="k3")
TEMPERATURE, KEY = np.float32(0.8), jax.random.key(5)


def shaken(params, seed):
    """Other values for the trained parameters, none of them zero."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(random.normal(scale=0.2, size=x.shape), x.dtype), params
    )


@pytest.fixture(scope="module")
def model():
    return models.init(SHAPE, 3, lora=LORA)


@pytest.fixture(scope="module")
def batch_of(make_group):
    return lambda number: pack(
        [
            make_group(10 * number + i, prompt=1 + i, lengths=(2, 5, 1), rewards=[1, 0, i % 2])
            for i in range(3)
        ],
        BATCH,
    )


def test_loss_and_gradient_are_those_of_the_merged_model(model, batch_of):
    graph, start, frozen = training_state.split(model)
    params = shaken(start, 1)
    reference = shaken(start, 2)
    batch = batch_of(1)

    def compute(graph, params, reference, *frozen):
        step = jax.jit(loss_and_gradient, static_argnums=0)
        return step(graph, params, batch, OBJECTIVE, TEMPERATURE, KEY, reference, *frozen)[:2]

    def merged(params):
        whole = training_state.full(params, frozen)
        return nnx.split(models.merged(nnx.merge(graph, whole)))

    loss, gradient = compute(graph, params, reference, frozen)
    merged_graph, merged_params = merged(params)
    expected, full = compute(merged_graph, merged_params, merged(reference)[1])
    np.testing.assert_allclose(loss, expected, atol=1e-6)
    itself, _ = compute(graph, params, params, frozen)
    assert float(loss) > float(itself) + 1e-3  # the reference has terms of its own
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    full = nnx.to_pure_dict(full)["layers"]
    # One key-value head: the queries come first.
    full["q_proj"] = full["qkv_proj"][..., : SHAPE.num_heads * SHAPE.head_dim]
    for name in ("q", "o", "gate", "down"):
        change = full[f"{name}_proj"]
        a, b = (np.asarray(params["layers"][f"{name}_lora_{half}"]) for half in "ab")
        for half, product in (("a", change @ b.swapaxes(1, 2)), ("b", a.swapaxes(1, 2) @ change)):
            found = gradient["layers"][f"{name}_lora_{half}"]
            np.testing.assert_allclose(found, LORA.scale * product, atol=1e-5)


# ---- whole runs


@pytest.fixture(scope="module")
def make_lora_config(make_config, tmp_path_factory):
    base = tmp_path_factory.mktemp("base") / "model"
    parts = build.build(make_config(base.parent / "none"))
    write_model(parts, *nnx.split(parts.model), base, step=0, contains=())

    def make(folder, words=""):
        common = f"--model.path {base} --model.lora_rank 2 --model.lora_alpha 4"
        common += " --model.lora_targets q_proj,v_proj,down_proj --objective.name grpo"
        common += " --objective.options.kl_coef 0.01 --training.steps 4 --warm-start.steps 3"
        common += " --evaluation.questions 0"
        common += " --checkpoint.every 2 --checkpoint.export true"
        return make_config(folder, f"{common} {words}")

    return make


@pytest.fixture(scope="module")
def run(make_lora_config, tmp_path_factory):
    """The folder of a finished run that was resumed with more steps."""
    folder = tmp_path_factory.mktemp("runs") / "lora"
    loop.train(make_lora_config(folder, "--training.steps 2"), console=quiet())
    return loop.train(make_lora_config(folder), resume=True, console=quiet())


def test_a_run_trains_resumes_and_exports_both_ways(run, make_lora_config, tmp_path, tiny_run):
    path = make_lora_config(run).model.path
    assert policies.export(run, tmp_path / "merged") == 4
    assert entry.main(["export", str(run), str(tmp_path / "adapter"), "--adapter"]) == 0
    base = models.load(path)
    merged = models.load(tmp_path / "merged")
    assert np.abs(logprobs(merged) - logprobs(base)).max() > 1e-3
    np.testing.assert_array_equal(merged.embed[...], base.embed[...])
    # Written at the end of the run.
    np.testing.assert_array_equal(logprobs(models.load(run / "model")), logprobs(merged))
    models.add_adapter(base, tmp_path / "adapter")
    np.testing.assert_allclose(logprobs(base), logprobs(merged), atol=1e-5)
    said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == path
    file = run / "checkpoints" / "4" / "params" / "_METADATA"
    stored = json.loads(file.read_text())["tree_metadata"]
    assert len(stored) == 6 and all("lora" in name for name in stored)
    with pytest.raises(UsageError, match="--adapter"):
        policies.export(tiny_run, tmp_path / "out", adapter=True)


def test_the_next_run_starts_from_the_adapter(run, make_lora_config, tmp_path):
    policies.export(run, tmp_path / "adapter", adapter=True)
    words = f"--model.adapter {tmp_path / 'adapter'} --model.lora_rank"
    following = build.build(make_lora_config(tmp_path / "next", f"{words} 0"))
    assert following.model.lora == LoraConfig(2, 4.0, ("q_proj", "v_proj", "down_proj"))
    frozen = training_state.split(following.model)[2]
    assert following.frozen["embed"] is frozen["embed"]  # loaded to where it is used
    expected = logprobs(models.load(run / "model"))
    np.testing.assert_allclose(logprobs(following.model), expected, atol=1e-5)
    assert build.model_contents(following.config) == {"arithmetic/train"}
    with pytest.raises(UsageError, match="model.lora_"):
        build.build(make_lora_config(tmp_path / "next", f"{words} 3"))
