"""The distribution: what importing costs, and that its metadata says what the code says."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import grre_jax
from grre_jax.cli import entry as cli

HEAVY = "jax flax transformers torch tensorflow tensorflow_datasets grain matplotlib rich"
HELP = "from grre_jax.cli.entry import main\ntry: main(['{}', '--help'])\nexcept SystemExit: 0"


def loaded(statement):
    """Top-level packages that a fresh interpreter holds after the statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=2000)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        (HELP.format("train"), HEAVY),
        (HELP.format("sample"), f"{HEAVY} numpy"),
        (
            "import grre_jax.rollouts, grre_jax.rollouts.tools.inspection",
            "tensorflow_datasets grain tensorflow array_record rich jax",
        ),
        (
            "import grre_jax.tasks; grre_jax.tasks.build('arithmetic').question(0)",
            "jax transformers tokenizers tensorflow tensorflow_datasets torch",
        ),
        (
            "import grre_jax.training.loop, grre_jax.sampling, grre_jax.rollouts, grre_jax.models",
            "torch tensorflow transformers",
        ),
    ],
)
def test_importing_is_light(statement, heavy):
    assert not loaded(statement) & set(heavy.split())


def test_metadata_matches_the_code():
    distribution = importlib.metadata.distribution("grre-jax")
    assert distribution.version == grre_jax.__version__
    extras = set(distribution.metadata.get_all("Provides-Extra"))
    assert {"cuda", "tpu", "rewards", "wandb", "notebooks", "test", "parity"} <= extras
    plain = [line.lower() for line in distribution.requires if "extra ==" not in line]
    other = ("torch", "tensorflow>", "tensorflow=", "libtpu", "nvidia", "jax[", "wandb")
    assert not [line for line in plain if line.startswith(other)]
    (script,) = distribution.entry_points.select(name="grre")
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
