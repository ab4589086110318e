"""`grre compile`: against the TPU compiler's own count where it is installed, and what can be
said without it.
"""

import dataclasses
import importlib.util
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax.config import (
    Config,
    ModelSource,
    ObjectiveConfig,
    SamplingConfig,
    TaskConfig,
    TrainingConfig,
)
from grre_jax.errors import UsageError
from grre_jax.models.transformer import Transformer
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.planner import abstract, compile
from grre_jax.planner import report as compile_report
from grre_jax.planner.hardware import chips as hardware_chips
from grre_jax.planner.hardware import interconnect, topology
from grre_jax.planner.program import costs, roofline
from grre_jax.training.actors.calls import training_calls

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU compiler: pip install 'grre-jax[tpu]'",
)

# One micro-batch and a vocabulary of one block: the layers are the only loop.
SMALL = Config(
    name="small",
    model=ModelSource(
        hidden_size=1024,
        intermediate_size=4096,
        num_layers=4,
        num_heads=8,
        num_kv_heads=2,
        head_dim=128,
        compute_dtype="bfloat16",
        remat="full",
    ),
    task=TaskConfig("arithmetic"),
    objective=ObjectiveConfig("grpo"),
    sampling=SamplingConfig(group_size=4, max_prompt_tokens=128, max_new_tokens=128),
    training=TrainingConfig(prompts_per_step=32, pack_length=256),
    mesh=MeshConfig(data=1, fsdp=4),
)


@pytest.fixture(scope="module")
def compiled():
    """The step of the small model scanned and unrolled: (cost, the compiler's own FLOPs) each."""
    slice_ = topology.topology("v5e:2x2")
    run = abstract.abstract_run(SMALL, slice_.devices)
    found = {}
    for unroll in (False, True):
        model = nnx.eval_shape(
            lambda unroll=unroll: Transformer(
                run.model,
                rngs=nnx.Rngs(0),
                compute_dtype=jnp.dtype("bfloat16"),
                remat=SMALL.model.remat,
                unroll=unroll,
            )
        )
        program = dataclasses.replace(run, graph=nnx.split(model)[0]).lower_step().compile()
        found[unroll] = (
            roofline.analyse(program.as_text(), slice_.torus(run.mesh)),
            program.cost_analysis()["flops"],
        )
    return found


@needs_compiler
@pytest.mark.slow
def test_a_scanned_model_costs_what_the_unrolled_one_does(compiled):
    scanned, unrolled = compiled[False][0], compiled[True][0]
    assert not scanned.problems and not unrolled.problems
    assert scanned.flops == pytest.approx(unrolled.flops, rel=0.02)
    assert scanned.hbm_bytes == pytest.approx(unrolled.hbm_bytes, rel=0.1)
    assert scanned.seconds == pytest.approx(unrolled.seconds, rel=0.1)


@needs_compiler
@pytest.mark.slow
def test_without_loops_our_flops_are_the_compilers_and_with_them_it_counts_too_little(compiled):
    unrolled, own = compiled[True]
    assert unrolled.flops == pytest.approx(own, rel=0.05)
    scanned, own = compiled[False]
    assert own < 0.7 * scanned.flops


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 3])
def test_weights_beyond_the_chips_own_memory_are_read_from_hbm_each_time(layers):
    """Two rows times 256 MiB of weights a layer: decoding in small."""
    import jax
    from jax.sharding import SingleDeviceSharding

    slice_ = topology.topology("v5e:2x2")
    place = SingleDeviceSharding(slice_.devices[0])
    x, w = (
        jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=place)
        for s in ((2, 11584), (layers, 11584, 11584))
    )

    def decode(x, w):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    torus = interconnect.Torus(slice_.chip, (2, 2), ((0, 0),))
    found = roofline.analyse(jax.jit(decode).lower(x, w).compile().as_text(), torus)
    assert not found.problems and found.flops == 2 * 2 * 11584**2 * layers
    assert found.hbm_bytes == pytest.approx(2 * 11584**2 * layers, rel=0.02)


# ---- without the TPU compiler


@pytest.fixture
def run():
    """The small run on a mesh of this machine's one device."""
    import jax

    config = dataclasses.replace(SMALL, mesh=MeshConfig(data=1, fsdp=1))
    return abstract.abstract_run(config, jax.devices()[:1])


def test_arrays_of_a_run_are_shapes_with_layouts(run):
    import jax

    leaves = jax.tree.leaves((run.state, run.batch))
    assert all(
        isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None for leaf in leaves
    )
    assert run.batch.tokens.shape == (1, 128, 256) and run.batch.rewards.shape == (128,)
    assert abstract.bytes_a_device(run.state.params) == 4 * run.model.num_parameters
    assert (
        abstract.bytes_a_device(run.state.opt_state) == 2 * 4 * run.model.num_parameters + 2 * 4
    )  # two moments, two counts


def test_a_published_shape_needs_no_weights_and_does_not_train():
    source = dataclasses.replace(SMALL.model, path="models/absent", shape="qwen2.5-0.5b")
    config = dataclasses.replace(SMALL, model=source, task=TaskConfig("no_such_task"))
    assert abstract.abstract_model(config).config.num_parameters == 494_032_768
    from grre_jax.training import build

    with pytest.raises(
        UsageError, match=r"model\.shape: expected empty to train, got 'qwen2\.5-0\.5b'"
    ):
        build.build(
            dataclasses.replace(SMALL, model=dataclasses.replace(SMALL.model, shape="qwen2.5-0.5b"))
        )


def test_of_a_model_with_low_rank_terms_only_those_have_an_optimiser_state(run):
    import jax

    source = dataclasses.replace(
        SMALL.model, path="models/absent", shape="qwen2.5-0.5b", lora_rank=4
    )
    config = dataclasses.replace(SMALL, model=source, mesh=MeshConfig(data=1, fsdp=1))
    small = abstract.abstract_run(config, jax.devices()[:1])
    assert abstract.bytes_a_device(small.frozen) == 4 * 494_032_768 and run.frozen == {}
    trained = abstract.bytes_a_device(small.state.params)
    assert (
        0 < trained < 4 * 494_032_768 / 50
        and abstract.bytes_a_device(small.state.opt_state) == 2 * trained + 2 * 4
    )
    assert compile._known(small, "train step").gradients == trained
    assert compile._known(small, "train step").parameters == trained + 4 * 494_032_768


def test_work_of_a_step_counts_the_copies_of_prompts_that_the_rows_hold(run):
    """Rows of one completion hold a prompt each; a row of a whole group holds one."""
    tokens, flops = compile.step_work(run)
    assert tokens == 32 * 4 * 256
    per = 128 * run.model.flops_per_token(64.5) + 128 * run.model.flops_per_token(128 + 64.5)
    assert flops == pytest.approx(3 * 32 * 4 * per)
    whole = dataclasses.replace(
        run, shape=dataclasses.replace(run.shape, pack_length=128 + 4 * 128)
    )
    assert compile.step_work(whole)[0] == 32 * (128 + 4 * 128)
    alone = dataclasses.replace(whole, shape=dataclasses.replace(whole.shape, share_prompts=False))
    assert compile.step_work(alone)[0] == 32 * 4 * 256


@pytest.mark.parametrize(
    ("message", "temporaries"),
    [
        (
            (
                "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO"
                " temporaries (18.50G) exceeds available HBM (15.75G)."
            ),
            18.5,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm.",
            20.0,
        ),
    ],
)
def test_what_the_compiler_says_when_memory_runs_out(run, message, temporaries):
    memory = compile._exhausted(run, "train step", message)
    arguments = 12 * run.model.num_parameters
    everything = temporaries * 2**30 + (0 if "Used" in message else arguments)
    assert memory.total == pytest.approx(everything, rel=0.01) and memory.message in message
    assert memory.parameters == memory.gradients == 4 * run.model.num_parameters


@pytest.mark.parametrize(
    ("kind", "expected"), [("Talk", True), ("Ask", False), ("ask", False), ("Missing", False)]
)
def test_a_task_that_is_a_class_is_not_built_to_see_if_it_has_environments(
    tmp_path, kind, expected
):
    """Building it may read or download a data set."""
    (tmp_path / "own.py").write_text(
        "class Ask:\n    def __init__(self):\n        raise AssertionError\n"
        "class Talk(Ask):\n    def environment(self): ...\n"
        "def ask():\n    from grre_jax import tasks\n    return tasks.build('arithmetic')\n"
    )
    task = TaskConfig(name=f"{tmp_path}/own.py:{kind}")
    assert compile._has_environments(Config("x", task=task)) is expected


@pytest.mark.parametrize(("temporaries", "fits"), [(15, True), (16, False)])
def test_a_program_fits_if_all_of_it_is_within_what_the_chip_has_for_programs(
    run, temporaries, fits
):
    """The compiler looks at its own part; the arguments lie in the same memory."""
    stats = SimpleNamespace(
        generated_code_size_in_bytes=2**20,
        temp_size_in_bytes=temporaries * 2**30,
        argument_size_in_bytes=12 * run.model.num_parameters + 2**20,
        output_size_in_bytes=2**20,
        alias_size_in_bytes=2**20,
    )
    text = (
        "HloModule m\n\nENTRY %main (a: f32[1024]) -> f32[1024] {\n  %a = f32[1024]{0}"
        " parameter(0)\n  ROOT %b = f32[1024]{0} negate(%a)\n}\n"
    )
    program = SimpleNamespace(memory_analysis=lambda: stats, as_text=lambda: text)
    step = SimpleNamespace(compile=lambda: program)
    fake = SimpleNamespace(
        **{field.name: getattr(run, field.name) for field in dataclasses.fields(run)},
        lower_step=lambda: step,
    )
    slice_ = topology.Topology(
        "v5e:1x1", hardware_chips.chip("v5e"), (1, 1), [SimpleNamespace(coords=(0, 0, 0))]
    )
    fake.mesh = SimpleNamespace(devices=np.array(slice_.devices), shape=run.mesh.shape)
    report = compile._report("train step", fake, slice_)
    assert report.fits is fits and bool(report.advice) is not fits
    assert report.memory.total == stats.argument_size_in_bytes + temporaries * 2**30 + 2**20
    assert report.memory.optimizer == 8 * run.model.num_parameters + 8
    assert report.cost.hbm_bytes == 8192 and report.mfu == pytest.approx(
        report.model_flops / (8192 / 819e9 * 197e12)
    )


def test_advice_names_fields_with_values(run):
    memory = compile.Memory(1, 2, 1, 100, 1, 0, 104)
    found = compile.advice(run, "train step", memory)
    assert found[0].startswith(
        "--training.packs_per_microbatch 64"
    ) and "--model.remat" not in " ".join(found)
    float32 = dataclasses.replace(
        run,
        config=dataclasses.replace(
            run.config, model=dataclasses.replace(run.config.model, compute_dtype="", remat="none")
        ),
    )
    found = compile.advice(float32, "train step", memory)
    assert found[0].startswith("--model.compute_dtype bfloat16") and any(
        line.startswith("--model.remat projections") for line in found
    )
    assert any(
        line.startswith("--sampling.max_concurrent 64")
        for line in compile.advice(run, "sampler", memory, training_calls(run.config)[0])
    )
    state = compile.Memory(40, 40, 1, 10, 10, 0, 101)
    assert compile.advice(run, "train step", state)[-1].startswith("more chips")


def test_the_report_says_what_fits_where_time_goes_and_what_was_not_costed(run):
    slice_ = topology.Topology("v5e:1x1", hardware_chips.chip("v5e"), (1, 1), [object()])
    memory = compile.Memory(2**30, 2**31, 2**20, 2**32, 2**30, 2**20, 7 * 2**30)
    cost = costs.Cost(
        2.0,
        roofline.Counter(products=1.46, interconnect=0.54),
        2e14,
        1e12,
        {"all-gather": (3, 2**30, 0.1)},
        3e9,
    )
    cost.where["forward: dot"], cost.problems = 1.5, {"custom kernel 'x' has no known cost"}
    good = compile.Report("train step", memory, 16 * 2**30, True, cost, 1000, 1e14, 0.254, 9.0, ())
    bad = dataclasses.replace(
        good,
        fits=False,
        cost=None,
        advice=("--model.remat full",),
        memory=dataclasses.replace(memory, message="Ran out"),
    )
    text = compile_report.as_text(slice_, run, [good, bad])
    for words in (
        "train step: fits, 7.00 GiB of 16.00 GiB usable",
        "predicted 2.00 s, 1,000 tokens (500 tokens/s), MFU 25.4%",
        "but for kernels and interconnect, 2.54 s, MFU 20.0%",
        "all-gather: 3 of 1.00 GiB together, 100.0 ms",
        "NOT COSTED: custom kernel 'x'",
        "DOES NOT FIT",
        "change first: --model.remat full",
        "the compiler: Ran out",
        "assumed: every row is full",
    ):
        assert words in text, words
    values = compile_report.as_dict(slice_, run, [good, bad])
    assert (
        values["programs"][0]["mfu"] == 0.254
        and values["programs"][0]["hbm_bytes_per_chip"]["capacity"] == 16 * 2**30
    )
    assert "seconds" not in values["programs"][1] and values["programs"][1]["advice"] == [
        "--model.remat full"
    ]
    import json

    json.dumps(values)


def test_the_command_ends_with_one_sentence_where_it_cannot_compile(monkeypatch, tmp_path, capsys):
    from grre_jax.cli import entry

    config = tmp_path / "small.py"
    config.write_text(
        "from grre_jax.config import Config\n\ndef config():\n    return Config(name='small')\n"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert entry.main(["compile", str(config), "--topology", "v5e:2x2", "--program", "step"]) == 2
    assert "pip install 'grre-jax[tpu]'" in capsys.readouterr().err
    assert (
        entry.main(["compile", str(config), "--topology", "v5e:2x2x2", "--training.steps", "3"])
        == 2
    )
    assert "a slice of v5e has 2 axes, got 3" in capsys.readouterr().err
    assert (
        entry.main(["compile", str(config), "--topology", "v5e:2x2", "--training.step", "3"]) == 2
    )
    assert "did you mean --training.steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "chips"),
    [("qwen2_5_7b_v5e_256", 256), ("llama3_1_8b_v5p_64", 64), ("qwen2_5_1_5b_v5e_4", 4)],
)
def test_the_pod_configurations_fill_their_chips(name, chips):
    from pathlib import Path

    from grre_jax import config as configs
    from grre_jax.training.data.pack import BatchShape

    config = configs.load_file(Path(__file__).parents[2] / "configs" / "pods" / f"{name}.py")
    mesh = config.mesh
    assert config.name == name and mesh.data * mesh.fsdp * mesh.tensor * mesh.sequence == chips
    sampling, training = config.sampling, config.training
    assert (
        training.prompts_per_step,
        sampling.group_size,
        sampling.max_prompt_tokens,
        sampling.max_new_tokens,
    ) == (96, 8, 256, 1024)
    shape = BatchShape.of_run(
        96, 8, 256, 1024, training.pack_length, training.packs_per_microbatch, mesh.data * mesh.fsdp
    )
    # Every row of every micro-batch holds something when all completions reach their limit.
    assert shape.rows * shape.micro_batches == 96 * 8 // ((shape.pack_length - 256) // 1024)
    assert abstract.abstract_model(config).config.num_parameters > 1e9
