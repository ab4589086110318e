"""Models from the Hugging Face Hub."""

import fnmatch

import huggingface_hub
import pytest

from grre_jax import cli
from grre_jax.errors import UsageError
from grre_jax.models.checkpoints.fetch import fetch


def test_a_model_is_downloaded_without_files_that_are_not_needed(monkeypatch, capsys):
    asked = []

    def snapshot_download(repo, *, local_dir, revision, allow_patterns):
        files = ("config.json", "model-00001-of-00002.safetensors", "pytorch_model.bin")
        taken = [file for file in files if any(fnmatch.fnmatch(file, p) for p in allow_patterns)]
        asked.append((repo, str(local_dir), revision, taken))
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert not cli.main(["fetch", "team/tiny"])
    assert not cli.main(["fetch", "team/tiny", "--output", "other", "--revision", "v1"])
    assert capsys.readouterr().out.split() == ["models/tiny", "other"]
    needed = ["config.json", "model-00001-of-00002.safetensors"]
    assert asked == [
        ("team/tiny", "models/tiny", None, needed),
        ("team/tiny", "other", "v1", needed),
    ]


def test_a_name_that_cannot_be_one_of_the_hub_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a name"):
        fetch("not a name", tmp_path / "out")
