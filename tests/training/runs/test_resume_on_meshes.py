"""A run that was saved on one mesh goes on on another, and on one device: the same losses from
the same stored shards.
"""

import shutil

import pytest

from ...run_processes import CONFIG, finish, kill_all, rows, start

MODEL = "--model.hidden_size 32 --model.num_heads 4 --model.num_kv_heads 4 --evaluation.questions 0".split()
MESHES = {"eight": (8, 2, 4), "four": (4, 4, 1), "one": (1, 1, 1)}  # devices, fsdp, tensor


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


@pytest.mark.slow
def test_saved_on_eight_devices_and_resumed_on_four_and_on_one(tmp_path):
    config = tmp_path / "small.py"
    config.write_text(CONFIG)
    finish(start(config, tmp_path / "source", *MODEL))
    source = str(tmp_path / "source" / "rollouts")
    stored = (*MODEL, "--data.path", source, "--checkpoint.every", "10")

    def run(name, mesh, steps, *more):
        devices, fsdp, tensor = MESHES[mesh]
        words = f"--mesh.fsdp {fsdp} --mesh.tensor {tensor} --training.steps {steps}".split()
        finish(start(config, tmp_path / name, *stored, *words, *more, devices=devices))
        return rows(tmp_path / name)

    whole = run("whole", "eight", 20)
    run("saved", "eight", 10)
    trained = {step: row for (kind, step), row in whole.items() if kind == "train"}
    assert len(trained) == 20
    for mesh in ("four", "one"):
        shutil.copytree(tmp_path / "saved", tmp_path / mesh)
        resumed = run(mesh, mesh, 20, "--resume")
        assert resumed.keys() == whole.keys()
        for step, row in trained.items():
            again = resumed["train", step]
            assert again["loss"] == pytest.approx(row["loss"], abs=1e-5), (mesh, step)
            assert again["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-3), (mesh, step)
    assert len({round(row["loss"], 7) for row in trained.values()}) > 10  # the steps moved
