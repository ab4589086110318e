"""Any mesh gives the numbers of one device: 8 devices of one process, in a process of its own."""

import json

import pytest

from ... import simulated_devices

# Models whose heads, vocabulary and layers divide some meshes and not others; rows with shared
# prompts.
EIGHT = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from grre_jax import models, objectives, parallel
from grre_jax.models import LoraConfig, ModelConfig, Transformer, transformer
from grre_jax.rollouts import Group
from grre_jax.training import step as states
from grre_jax.training.data.pack import BatchShape
from grre_jax.training.data.batches import place
from grre_jax.training.optimizer import OptimizerConfig
from grre_jax.training.step import make_train_step

SIZES = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8)
LORA = LoraConfig(2, 8.0, ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"))
MODELS = {
    "tied_lora": ModelConfig(**SIZES),
    "windows_untied_scanned": ModelConfig(
        **SIZES | dict(vocab_size=51), tie_embeddings=False, qkv_bias=True, qk_norm=True, post_norms=True, unit_offset_norms=True,
        sliding_window=3, sliding_layers=(True, False), logit_softcap=9.0,
        whole_qk_norm=True, attention_softcap=5.0, rotated_layers=(False, True), rotary_share=0.5, interleaved_rotary=True),
    "experts": ModelConfig(**SIZES | dict(num_layers=1), num_experts=8, experts_per_token=2, family="mixtral"),
}

def group(number):
    draw = np.random.default_rng(number)
    lengths = draw.integers(1, 6, 4)
    total = int(lengths.sum())
    return Group(group_id=f"g{number}", prompt="", texts=[""] * 4, rewards=[0, 1, 1, 0], prompt_tokens=draw.integers(0, 50, 1 + number % 5), lengths=lengths,
                 tokens=draw.integers(0, 50, total), behavior_logprobs=-draw.exponential(size=total))

groups = [group(n) for n in range(9)]
settings = OptimizerConfig(learning_rate=1e-2)
compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None)
objective = objectives.algorithm("grpo", kl_coef=0.05, kl_estimator="k3")

def run(name, mesh_config, devices):
    mesh = parallel.make_mesh(mesh_config, devices)
    transformer.UNROLL_LAYERS_ON_CPU = 0 if "scanned" in name else 32
    model = Transformer(MODELS[name], rngs=nnx.Rngs(3), lora=LORA if "lora" in name else None, remat="attended" if "scanned" in name else "none")
    for parameter, value in models.parameters(model).items():
        if parameter.endswith("_lora_b"):  # zero in a new model
            draw = np.random.default_rng(1).normal(scale=0.2, size=value.shape)
            getattr(model.layers, parameter.removeprefix("layers."))[...] = draw.astype(np.float32)
    graph, params, _ = states.split(model)
    state = states.fresh(states.copied(params, mesh), settings, mesh)
    frozen = states.frozen(model, mesh)
    reference = jax.tree.map(lambda x: x * 1.05, state.params)
    shape = BatchShape.of_run(9, 4, 5, 6, 28, 4, parallel.row_devices(mesh))
    step = make_train_step(graph, settings, mesh)
    losses, norms, before = [], [], 0
    for number in range(3):
        before = len(compiled) if number == 1 else before
        batch = place(groups, shape, objective, mesh)
        state, metrics = step(state, batch, objective, np.float32(0.9), jax.random.key(0), reference, frozen)
        losses.append(float(metrics["loss"])); norms.append(float(metrics["grad_norm"]))
    recompiled = len(compiled) - before
    total = sum(float(jnp.abs(x.astype(jnp.float32)).sum()) for x in jax.tree.leaves(state.params))
    arrays = dict(state.params["layers"])
    if "lora" in name:
        merged = models.merged(nnx.merge(graph, states.full(state.params, frozen)))
        arrays["merged"] = merged.layers.qkv_proj[...]
        total += sum(float(jnp.abs(x).sum()) for x in models.parameters(merged).values())
    cuts = {key: {a: i for i, a in enumerate(x.sharding.spec) if a} for key, x in arrays.items()} if len(devices) > 1 else {}
    return {"losses": losses, "norms": norms, "total": total, "cuts": cuts, "recompiled": recompiled}

M = parallel.MeshConfig
MESHES = {
    "tied_lora": M(fsdp=2, tensor=2),
    "windows_untied_scanned": M(fsdp=2, tensor=2, sequence=2),
    "experts": M(fsdp=2, expert=2, tensor=2),
}
name = sys.argv[1]
print(json.dumps([run(name, M(), jax.devices()[:1]), run(name, MESHES[name], jax.devices())]))
"""


@pytest.mark.parametrize(
    "name, cuts",
    [
        pytest.param(
            "windows_untied_scanned",
            {"qkv_proj": {"fsdp": 1, "tensor": 2}},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "experts",
            {"expert_up_proj": {"expert": 1, "fsdp": 2, "tensor": 3}, "router_proj": {}},
            marks=pytest.mark.distributed,
        ),
        pytest.param(
            "tied_lora",
            {
                "q_lora_a": {"fsdp": 1},
                "q_lora_b": {"tensor": 2},
                "down_lora_a": {"tensor": 1},
                "down_lora_b": {"fsdp": 2},
                "merged": {"fsdp": 1, "tensor": 2},
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mesh_gives_the_numbers_of_one_device(name, cuts):
    one, run = json.loads(simulated_devices.printed(EIGHT, name))
    assert run["cuts"].items() >= cuts.items()  # mesh axis: dimension
    assert len(set(one["losses"])) == 3  # the steps moved
    assert run["losses"] == pytest.approx(one["losses"], abs=1e-5)
    # Two updates of Adam magnify rounding.
    assert run["norms"] == pytest.approx(one["norms"], rel=1e-3)
    assert run["total"] == pytest.approx(one["total"], rel=1e-5)
    assert run["recompiled"] == 0  # the first step compiled all that the run needs
