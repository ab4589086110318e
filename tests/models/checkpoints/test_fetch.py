"""Models from the Hugging Face Hub."""

import fnmatch
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from grre_jax import cli
from grre_jax.errors import UsageError
from grre_jax.models.checkpoints.fetch import fetch

NEEDED = {"config.json", "generation_config.json", "model.safetensors"}


@pytest.fixture
def hub(checkpoint, monkeypatch):
    """A Hub with one model, team/tiny, beside whose files lies one that is not needed."""
    stored = checkpoint("llama")
    (stored / "pytorch_model.bin").write_bytes(b"pickle")

    def snapshot_download(repo, *, local_dir, revision, allow_patterns):
        assert local_dir is not None
        if (repo, revision) not in (("team/tiny", None), ("team/tiny", "v1")):
            raise OSError(f"{repo} {revision}: not found")
        Path(local_dir).mkdir(parents=True, exist_ok=True)
        for file in stored.iterdir():
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, local_dir)
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return stored


def test_a_model_is_downloaded_without_files_that_are_not_needed(
    hub, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert not cli.main(["fetch", "team/tiny"])
    assert not cli.main(["fetch", "team/tiny", "--output", "other", "--revision", "v1"])
    assert capsys.readouterr().out.split() == ["models/tiny", "other"]
    for folder in ("models/tiny", "other"):
        found, there = (
            {file.name: file.read_bytes() for file in path.iterdir()}
            for path in (tmp_path / folder, hub)
        )
        assert found == {name: data for name, data in there.items() if name in NEEDED}


@pytest.mark.parametrize("repo", ["team/absent", "not a name"])
def test_a_model_that_the_hub_lacks_is_refused_by_name(hub, tmp_path, repo):
    with pytest.raises(UsageError, match=repo):
        fetch(repo, tmp_path / "out")
