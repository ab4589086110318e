"""A run that is killed for real, and resumed: the same numbers as the run that was not, and no
shard lost.
"""

import signal

import pytest

from grre_jax import models, rollouts

from ...run_processes import CONFIG, finish, kill_all, rows, start, wait_for_step

SETTINGS = (
    "--regime.sync_interval 4 --model.num_layers 2 --model.num_kv_heads 1 --training.steps 30"
    " --checkpoint.every 10 --evaluation.every 10 --evaluation.questions 4 --checkpoint.export true"
).split()


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


# A signal that asks the run to stop is sent within the tests' process (test_loop).
def test_killed_and_resumed(undisturbed, tmp_path):
    config, expected = undisturbed
    run = tmp_path / "run"
    process = start(config, run, *SETTINGS)
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


# Two processes of four devices each do so in tests/parallel/, and test_meshes tries every axis.


@pytest.mark.slow
def test_eight_devices_sample_the_same(undisturbed, tmp_path):
    config, source = undisturbed
    common = "--warm_start.steps 0 --training.steps 4 --evaluation.questions 0".split()
    common += ["--model.path", str(source / "model"), "--checkpoint.export", "false"]
    common = [*SETTINGS, *common]
    finish(start(config, tmp_path / "one", *common))
    finish(start(config, tmp_path / "eight", *common, devices=8))
    one, eight = (rollouts.read(tmp_path / name / "rollouts") for name in ("one", "eight"))
    assert len(one) == len(eight) == 16
    assert [group.texts for group in one] == [group.texts for group in eight]
