"""Importing a room is light: what takes seconds is imported where it is used."""

import subprocess
import sys

import pytest

LOADED = "import sys; print([name for name in {heavy!r}.split() if name in sys.modules])"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (
            "import grre_jax.rollouts, grre_jax.rollouts.tools.show",
            "tensorflow_datasets grain tensorflow array_record rich jax",
        ),
        (
            "import grre_jax.tasks; grre_jax.tasks.build('arithmetic').question(0)",
            "jax transformers tokenizers tensorflow tensorflow_datasets torch",
        ),
        (
            "from grre_jax.cli.entry import main\ntry: main(['sample', '--help'])\nexcept SystemExit: pass",
            "jax flax transformers rich numpy",
        ),
    ],
)
def test_nothing_heavy_is_imported(code, heavy):
    program = f"{code}\n{LOADED.format(heavy=heavy)}"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
