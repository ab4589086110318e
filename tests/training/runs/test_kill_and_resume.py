"""A run that is killed for real, and resumed: the same numbers as the run that was not, and no
shard lost.
"""

import signal

import pytest

from grre_jax import models, rollouts

from ...run_processes import CONFIG, finish, kill_all, rows, start, wait_for_step

SETTINGS = (
    "--regime.sync_interval",
    "4",
    "--model.num_layers",
    "2",
    "--model.num_kv_heads",
    "1",
    "--training.steps",
    "30",
    "--checkpoint.every",
    "10",
)
SETTINGS += (
    "--evaluation.every",
    "10",
    "--evaluation.questions",
    "4",
    "--checkpoint.export",
    "true",
)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "small.py").write_text(CONFIG)
    finish(start(folder / "small.py", folder / "run", *SETTINGS))
    return folder / "small.py", folder / "run"


# A signal that asks the run to stop is sent within the tests' process too (test_loop).
@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_stopped_killed_and_resumed(undisturbed, tmp_path, stopped):
    config, expected = undisturbed
    run = tmp_path / "run"
    resume = ()
    if stopped:
        process = start(config, run, *SETTINGS)
        wait_for_step([process], run, 3)
        process.send_signal(signal.SIGTERM)  # saves first
        (said,) = finish(process, status=128 + signal.SIGTERM)
        assert "stopped by SIGTERM at step" in said and "--resume" in said
        assert "Traceback" not in said
        step = int(said.split("at step ")[1].split(",")[0])
        assert (run / "checkpoints" / str(step)).is_dir() and 3 <= step < 10
        resume = ("--resume",)

    process = start(config, run, *SETTINGS, *resume)
    wait_for_step([process], run, 23)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    sealed = {entry.name for entry in rollouts.read(run / "rollouts").datasets}
    finish(start(config, run, *SETTINGS, "--resume"))
    assert sealed <= {entry.name for entry in rollouts.read(run / "rollouts").datasets}

    assert rows(run) == rows(expected)
    assert models.fingerprint(models.load(run / "model")) == models.fingerprint(
        models.load(expected / "model")
    )
    assert rollouts.verify(run / "rollouts").ok
    assert list(rollouts.read(run / "rollouts")) == list(rollouts.read(expected / "rollouts"))


@pytest.fixture(scope="module")
def stored(undisturbed):
    """Arguments of runs that learn from the undisturbed run's shards, and the log of such a run
    on one device.
    """
    config, source = undisturbed
    arguments = (
        *SETTINGS,
        "--warm_start.steps",
        "0",
        "--data.path",
        str(source / "rollouts"),
        "--training.steps",
        "20",
    )
    arguments += ("--evaluation.questions", "0", "--checkpoint.export", "false")
    finish(start(config, config.parent / "one", *arguments))
    return arguments, rows(config.parent / "one")


# Two processes of four devices each do so in tests/parallel/, and test_meshes tries every axis.
@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", [(), ("--mesh.fsdp", "2", "--mesh.tensor", "2")], ids=["data", "data-fsdp-tensor"]
)
def test_eight_devices_learn_the_same_from_the_same_shards(undisturbed, stored, tmp_path, mesh):
    arguments, one = stored
    (said,) = finish(
        start(
            undisturbed[0], tmp_path / "eight", *arguments, *mesh, devices=8, JAX_LOG_COMPILES="1"
        )
    )
    assert (
        said.count("Compiling jit(train_step)") == 1
    )  # the layout that a step leaves is the one that it began with
    eight = rows(tmp_path / "eight")
    assert len(one) == 20 and one.keys() == eight.keys()
    for key, row in one.items():
        assert eight[key]["loss"] == pytest.approx(row["loss"], abs=1e-4)
        assert eight[key]["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-3)


@pytest.mark.slow
def test_eight_devices_sample_the_same(undisturbed, tmp_path):
    config, source = undisturbed
    common = (
        *SETTINGS,
        "--warm_start.steps",
        "0",
        "--model.path",
        str(source / "model"),
        "--training.steps",
        "4",
    )
    common += ("--evaluation.questions", "0", "--checkpoint.export", "false")
    finish(start(config, tmp_path / "one", *common))
    finish(start(config, tmp_path / "eight", *common, devices=8))
    one, eight = (rollouts.read(tmp_path / name / "rollouts") for name in ("one", "eight"))
    assert len(one) == len(eight) == 16
    assert [group.texts for group in one] == [group.texts for group in eight]
