"""`grre compile` on this machine, and with the TPU compiler where it is installed."""

import dataclasses
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from grre_jax import config as configs
from grre_jax.cli import entry
from grre_jax.config import (
    Config,
    EvaluationConfig,
    ModelSource,
    ObjectiveConfig,
    SamplingConfig,
    TaskConfig,
    TrainingConfig,
)
from grre_jax.errors import UsageError
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.planner import compile
from grre_jax.training import build
from grre_jax.training.config.run import override
from grre_jax.training.data.pack import BatchShape

CONFIGS = Path(__file__).parents[2] / "configs"
SHAPE = CONFIGS / "shapes" / "qwen2.5-0.5b"
PODS = sorted((CONFIGS / "pods").glob("*_v*.py"))
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
    evaluation=EvaluationConfig(questions=0),
    mesh=MeshConfig(data=1, fsdp=4),
)


ONE = ("--mesh.data", "1", "--model.num_layers", "1")


@pytest.fixture
def default(tmp_path):
    """The file of a configuration that leaves everything at its default."""
    file = tmp_path / "embedded.py"
    file.write_text(
        "from grre_jax.config import Config\nconfig = lambda: Config(name='embedded')\n"
    )
    return str(file)


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU compiler: pip install 'grre-jax[tpu]'",
)
@pytest.mark.slow
def test_a_slice_of_tpus():
    reports = compile.compile_run(SMALL, "v5e:2x2")
    assert [report.program for report in reports] == ["step", "sampler"]
    for report in reports:
        assert report.fits and 0 < report.memory["total"] < 63 * 2**28 and report.counts.cycles > 0
        counts = report.counts
        assert all(counts.moved[kind] > 0 for kind in counts.collectives)
        assert not counts.unbounded


def test_one_layer_of_the_embedded_default_on_this_machine(default, capsys):
    config = override(configs.load_file(default), ONE)
    step, sampler = compile.compile_run(config)
    said = capsys.readouterr().out
    assert "54,528 parameters" in said and "step: fits" in said and "sampler: fits" in said
    for program in (step, sampler):
        assert program.fits and program.counts.collectives == {}
        memory = program.memory
        parts = ("arguments", "outputs", "temporaries", "code")
        assert memory["total"] == sum(memory[part] for part in parts) - memory["aliased"]
    # Parameters and two moments in float32 come in, and go out in their places.
    state = 3 * 4 * 54_528
    assert state <= step.memory["aliased"] < 1.01 * state
    assert step.memory["arguments"] > step.memory["aliased"]


def test_a_program_that_does_not_fit(default, monkeypatch, capsys):
    monkeypatch.setattr(compile, "device_bytes", lambda: 2**20)
    assert entry.main(["compile", default, *ONE]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out


def test_a_program_that_the_compiler_finds_no_memory_for():
    def fail():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 20.00G of 15.75G hbm.\nmore")

    run = SimpleNamespace(lower_step=lambda: SimpleNamespace(compile=fail))
    target = compile.Target("v5e:1x1", [], 2**30, 1e9)
    report = compile._report("step", run, target, None)
    assert not report.fits
    assert report.message == "RESOURCE_EXHAUSTED: Used 20.00G of 15.75G hbm."


def test_a_shape_needs_no_weights_and_does_not_train():
    source = dataclasses.replace(SMALL.model, path="models/absent", shape=str(SHAPE))
    config = dataclasses.replace(SMALL, model=source, task=TaskConfig("no_such_task"))
    assert compile.abstract_model(config).config.num_parameters == 494_032_768
    source = dataclasses.replace(SMALL.model, shape=str(SHAPE))
    with pytest.raises(UsageError, match=r"model\.shape"):
        build.build(dataclasses.replace(SMALL, model=source))


@pytest.mark.parametrize("path", PODS, ids=lambda path: path.stem)
def test_the_pod_configurations_fill_their_chips(path):
    """Whose number ends their names."""
    config = configs.load_file(path)
    mesh = config.mesh
    axes = (mesh.data, mesh.fsdp, mesh.expert, mesh.tensor, mesh.sequence)
    assert path.stem.endswith(f"_{np.prod(axes)}")
    sampling, training = config.sampling, config.training
    sizes = (training.prompts_per_step, sampling.group_size)
    sizes += (sampling.max_prompt_tokens, sampling.max_new_tokens)
    devices = mesh.data * mesh.fsdp * mesh.expert
    shape = BatchShape.of_run(*sizes, training.pack_length, training.packs_per_microbatch, devices)
    # Every row of every micro-batch holds something when all completions reach their limit.
    assert shape.rows * shape.micro_batches == 96 * 8 // ((shape.pack_length - 256) // 1024)
    assert compile.abstract_model(config).config.num_parameters > 1e9
