"""Training of low-rank terms alone: exact gradients, an untouched base, small checkpoints, whole
runs and what they export.
"""

import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from grre_jax import models, objectives, parallel
from grre_jax.cli import entry
from grre_jax.errors import UsageError
from grre_jax.models.lora import LoraConfig, is_lora
from grre_jax.planner.abstract import abstract_run
from grre_jax.training import build, loop, policies
from grre_jax.training import state as training_state
from grre_jax.training.actors.calls import training_calls
from grre_jax.training.data.pack import BatchShape, pack
from grre_jax.training.export import write_model
from grre_jax.training.optimizer import OptimizerConfig, make_optimizer
from grre_jax.training.step import loss_and_gradient, make_train_step

from ..test_step import CONFIG

pytestmark = pytest.mark.usefixtures("no_reports")

SHAPE = dataclasses.replace(CONFIG, num_layers=2)
LORA = LoraConfig(2, 6.0, ("q_proj", "o_proj", "gate_proj", "down_proj"))
BATCH = BatchShape.of_run(3, 3, 4, 6, 28, rows=1)
OBJECTIVE = objectives.algorithm("grpo", kl_coef=0.5, kl_estimator="k3")
TEMPERATURE, KEY = np.float32(0.8), jax.random.key(5)
TOKENS = np.array([[3, 10, 5, 15, 8, 16], [0, 12, 9, 15, 0, 16]])


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
    params, reference, batch = shaken(start, 1), shaken(start, 2), batch_of(1)
    compute = jax.jit(loss_and_gradient, static_argnums=0)
    loss, gradient, _ = compute(
        graph, params, batch, OBJECTIVE, TEMPERATURE, KEY, reference, frozen
    )
    (merged, full_params), (_, full_reference) = (
        nnx.split(models.merged(nnx.merge(graph, training_state.full(p, frozen))))
        for p in (params, reference)
    )
    expected, full, _ = compute(
        merged, full_params, batch, OBJECTIVE, TEMPERATURE, KEY, full_reference
    )
    np.testing.assert_allclose(loss, expected, atol=1e-6)
    itself, _, _ = compute(graph, params, batch, OBJECTIVE, TEMPERATURE, KEY, params, frozen)
    assert float(loss) > float(itself) + 1e-3  # the reference has terms of its own
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    full = nnx.to_pure_dict(full)["layers"]
    # One key-value head: the queries come first.
    changes = {"q": full["qkv_proj"][..., : SHAPE.num_heads * SHAPE.head_dim]}
    changes |= {name: full[f"{name}_proj"] for name in ("o", "gate", "down")}
    for name, change in changes.items():
        a, b = (np.asarray(params["layers"][f"{name}_lora_{half}"]) for half in "ab")
        products = {"a": change @ b.swapaxes(1, 2), "b": a.swapaxes(1, 2) @ change}
        for half, product in products.items():
            np.testing.assert_allclose(
                gradient["layers"][f"{name}_lora_{half}"], LORA.scale * product, atol=1e-5
            )


def test_steps_change_the_terms_alone_in_one_compilation(model, batch_of, caplog):
    settings = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1)
    mesh, optimizer = parallel.make_mesh(parallel.MeshConfig()), make_optimizer(settings)
    before = {name: np.array(value) for name, value in models.parameters(model).items()}
    graph, state = training_state.create(model, optimizer, mesh)
    frozen = training_state.frozen(model, mesh)
    trained = sum(value.size for name, value in before.items() if is_lora(name))
    assert sum(x.size for x in jax.tree.leaves(state)) < 3.1 * trained
    step = make_train_step(graph, optimizer, settings.schedule(), mesh)
    reference = jax.tree.map(jnp.copy, state.params)
    with jax.log_compiles():
        for number in range(4):
            state, metrics = step(
                state, batch_of(number), OBJECTIVE, TEMPERATURE, KEY, reference, frozen
            )
    assert sum("Compiling jit(train_step)" in record.getMessage() for record in caplog.records) == 1
    assert float(metrics["grad_norm"]) > 0
    after = models.parameters(nnx.merge(graph, training_state.full(state.params, frozen)))
    for name, value in before.items():
        assert (np.asarray(after[name]) != value).any() == is_lora(name), name
    for name, value in models.parameters(model).items():  # neither donated nor changed
        np.testing.assert_array_equal(value, before[name])


def test_ahead_of_time_compilation_takes_the_frozen_part_along(make_config):
    words = "--model.hidden_size 1536 --model.intermediate_size 8960 --model.num_heads 12"
    words += " --model.num_kv_heads 2 --model.head_dim 128 --model.dtype bfloat16"
    words += " --model.lora_rank 4 --model.lora_targets q_proj,down_proj --objective.name grpo"
    config = make_config("none", f"{words} --objective.options.kl_coef 0.1")
    run = abstract_run(config, jax.devices())
    # Two layers of A and B of the queries (1536 -> 1536) and of the way down (8960 -> 1536), in
    # float32; moments of the same size.
    trained = 2 * 4 * (1536 + 1536 + 8960 + 1536) * 4
    trees = (run.state.params, run.frozen, run.state.opt_state)
    sizes = [sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)) for tree in trees]
    assert sizes[:2] == [trained, 2 * run.model.num_parameters]
    assert sizes[2] == pytest.approx(2 * trained, abs=100)
    run.lower_step()
    run.lower_call(training_calls(run.config)[0])


# ---- whole runs


def train(config, **options):
    return loop.train(config, console=Console(file=io.StringIO()), **options)


@pytest.fixture(scope="module")
def make_lora_config(make_config, tmp_path_factory):
    base = tmp_path_factory.mktemp("base") / "model"
    parts = build.build(make_config(base.parent / "none"))
    write_model(parts, *nnx.split(parts.model), base, step=0, contains=())

    def make(folder, words=""):
        common = f"--model.path {base} --model.lora_rank 2 --model.lora_alpha 4"
        common += " --model.lora_targets q_proj,v_proj,down_proj --objective.name grpo"
        common += " --objective.options.kl_coef 0.01 --training.steps 4 --warm-start.steps 3"
        common += " --checkpoint.every 2 --checkpoint.export true"
        return make_config(folder, f"{common} {words}")

    return make


@pytest.fixture(scope="module")
def run(make_lora_config, tmp_path_factory):
    """The folder of a finished run that was resumed with more steps."""
    folder = tmp_path_factory.mktemp("runs") / "lora"
    train(make_lora_config(folder, "--training.steps 2"))
    return train(make_lora_config(folder), resume=True)


def logprobs(model):
    return np.asarray(models.token_logprobs(model, TOKENS))


def test_a_run_trains_resumes_and_exports_both_ways(run, make_lora_config, tmp_path):
    base = models.load(make_lora_config(run).model.path)
    assert policies.export(run, tmp_path / "merged") == 4
    assert entry.main(["export", str(run), str(tmp_path / "adapter"), "--adapter"]) == 0
    merged = models.load(tmp_path / "merged")
    assert np.abs(logprobs(merged) - logprobs(base)).max() > 1e-3
    np.testing.assert_array_equal(
        logprobs(models.load(run / "model")), logprobs(merged)
    )  # written at the end of the run
    np.testing.assert_array_equal(merged.embed[...], base.embed[...])
    again = models.load(make_lora_config(run).model.path)
    models.add_adapter(again, tmp_path / "adapter")
    np.testing.assert_allclose(logprobs(again), logprobs(merged), atol=1e-5)
    said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == make_lora_config(run).model.path


def test_checkpoints_hold_the_terms_alone(run, make_lora_config):
    parts = build.build(make_lora_config(run))
    file = run / "checkpoints" / "4" / "params" / "_METADATA"
    stored = json.loads(file.read_text())["tree_metadata"]
    assert len(stored) == 6 and all("lora" in name for name in stored)
    frozen = training_state.split(parts.model)[2]
    assert parts.frozen["embed"] is frozen["embed"]  # loaded to where it is used


def test_the_next_run_starts_from_the_adapter(run, make_lora_config, tmp_path):
    policies.export(run, tmp_path / "adapter", adapter=True)

    def start(rank):
        words = f"--model.adapter {tmp_path / 'adapter'} --model.lora_rank {rank}"
        return build.build(make_lora_config(tmp_path / "next", words))

    following = start(0)
    assert following.model.lora == LoraConfig(2, 4.0, ("q_proj", "v_proj", "down_proj"))
    expected = logprobs(models.load(run / "model"))
    np.testing.assert_allclose(logprobs(following.model), expected, atol=1e-5)
    assert build.model_contents(following.config) == {"arithmetic/train"}
    with pytest.raises(UsageError, match="model.lora_"):
        start(3)


def test_adapters_that_cannot_be_written(tiny_run, tmp_path):
    with pytest.raises(UsageError, match="--adapter"):
        policies.export(tiny_run, tmp_path / "out", adapter=True)
