"""Training of low-rank terms alone: exact gradients, an untouched base, small checkpoints, whole
runs and what they export.
"""

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
from grre_jax.training import build, loop, policies, step as training_state
from grre_jax.training.data.pack import BatchShape, pack
from grre_jax.training.policies import write_model
from grre_jax.training.step import loss_and_gradient

from ...models.conftest import random_model
from ...run_processes import quiet
from ..test_step import CONFIG

pytestmark = pytest.mark.usefixtures("no_reports")

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


@pytest.mark.slow
def test_loss_and_gradient_are_those_of_the_merged_model(make_group):
    groups = [make_group(i, prompt=i, lengths=(2, 5, 1), rewards=[1, 0, i % 2]) for i in (1, 2, 3)]
    batch = pack(groups, BATCH)
    graph, start, frozen = training_state.split(random_model(**vars(CONFIG), lora=LORA))
    params = shaken(start, 1)
    reference = shaken(start, 2)

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
    a, b = (params["layers"][f"down_lora_{half}"] for half in "ab")
    products = {
        "a": full["down_proj"] @ b.swapaxes(1, 2),
        "b": a.swapaxes(1, 2) @ full["down_proj"],
    }
    for half, product in products.items():
        found = gradient["layers"][f"down_lora_{half}"]
        np.testing.assert_allclose(found, LORA.scale * product, atol=1e-5)


def test_a_run_trains_resumes_and_exports_what_the_next_one_begins_with(
    make_config, tmp_path, tiny_run
):
    base = tmp_path / "base"
    parts = build.build(make_config(tmp_path / "none"))
    write_model(parts, parts.params, base, step=0, contains=())

    def config(name, words=""):
        common = f"--model.path {base} --model.lora_rank 2 --model.lora_alpha 4"
        common += " --model.lora_targets q_proj,v_proj,down_proj --objective.name asymre"
        common += " --objective.options.kl_coef 0.01 --training.steps 4 --warm-start.steps 0"
        common += " --evaluation.questions 0 --checkpoint.every 2 --checkpoint.export true"
        return make_config(tmp_path / name, f"{common} {words}")

    loop.train(config("run", "--training.steps 2"), console=quiet())
    run = loop.train(config("run"), resume=True, console=quiet())
    before = models.load(base)
    merged = models.load(run / "model")
    assert np.abs(merged.layers.qkv_proj[...] - before.layers.qkv_proj[...]).max() > 1e-3
    np.testing.assert_array_equal(merged.embed[...], before.embed[...])
    file = run / "checkpoints" / "4" / "params" / "_METADATA"
    stored = json.loads(file.read_text())["tree_metadata"]
    assert len(stored) == 6 and all("lora" in name for name in stored)

    adapter = tmp_path / "adapter"
    assert entry.main(["export", str(run), str(adapter), "--adapter"]) == 0
    said = json.loads((adapter / "adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == str(base)
    words = f"--model.adapter {adapter} --model.lora_rank"
    following = build.build(config("next", f"{words} 0"))
    assert following.model.lora == LoraConfig(2, 4.0, ("q_proj", "v_proj", "down_proj"))
    found = models.parameters(models.merged(following.model))
    for name, value in models.parameters(merged).items():
        np.testing.assert_allclose(found[name][...], value[...], atol=1e-6)
    assert build.model_contents(following.config) == {"arithmetic/train"}
    with pytest.raises(UsageError, match="model.lora_"):
        build.build(config("next", f"{words} 3"))
    with pytest.raises(UsageError, match="--adapter"):
        policies.export(tiny_run, tmp_path / "out", adapter=True)
