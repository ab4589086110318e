"""The distribution: what importing costs, and that its metadata says what the code says."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import grre_jax
from grre_jax.cli import entry as cli

HEAVY = {
    "jax",
    "flax",
    "transformers",
    "torch",
    "tensorflow",
    "tensorflow_datasets",
    "grain",
    "matplotlib",
    "rich",
}


def loaded(statement):
    """Top-level packages that a fresh interpreter holds after the statement."""
    code = (
        f"{statement}\nimport sys\nprint(' '.join(sorted({{name.partition('.')[0] for name in"
        " sys.modules})))"
    )
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=2000
        ).stdout.split()
    )


def test_help_loads_nothing_heavy():
    assert (
        not loaded(
            "import grre_jax.cli.entry\ntry:\n    grre_jax.cli.entry.main(['train',"
            " '--help'])\nexcept SystemExit:\n    pass"
        )
        & HEAVY
    )


def test_no_room_loads_another_framework():
    rooms = (
        "configs = __import__('grre_jax.training.config.run'); import grre_jax.training.loop,"
        " grre_jax.sampling, grre_jax.rollouts, grre_jax.models"
    )
    assert not loaded(rooms) & {"torch", "tensorflow", "transformers"}


def test_metadata_matches_the_code():
    distribution = importlib.metadata.distribution("grre-jax")
    assert distribution.version == grre_jax.__version__
    assert distribution.metadata["Requires-Python"] == ">=3.11"
    assert {"cuda", "tpu", "rewards", "wandb", "notebooks", "test", "parity"} <= set(
        distribution.metadata.get_all("Provides-Extra")
    )
    plain = [line.lower() for line in distribution.requires if "extra ==" not in line]
    assert not [
        line
        for line in plain
        if line.startswith(
            ("torch", "tensorflow>", "tensorflow=", "libtpu", "nvidia", "jax[", "wandb")
        )
    ]


def test_the_console_script_is_main():
    (script,) = [
        entry
        for entry in importlib.metadata.distribution("grre-jax").entry_points
        if entry.name == "grre"
    ]
    assert script.group == "console_scripts" and script.load() is cli.main


def test_what_is_built_has_every_file_of_the_package(tmp_path):
    """Templates too, which are no Python."""
    root = Path(grre_jax.__file__).parent
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=root.parent, check=True, capture_output=True, timeout=120)
    own = {
        path.relative_to(root)
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert own - {path.relative_to(tmp_path / "grre_jax") for path in tmp_path.rglob("*")} == set()
