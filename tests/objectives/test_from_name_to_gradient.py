"""The page that walks from an algorithm's name to its gradient names its files and definitions."""

import re
from pathlib import Path

from grre_jax import objectives

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "from-name-to-gradient.md"
ROOM = ROOT / "grre_jax" / "objectives"
# Types and measures that all algorithms share, as the page says.
SHARED = {"part", "objective", "inputs", "batch", "groups", "statistics", "diagnostics"}
COMPOSITION = {"table", "algorithms", "composition"}
REQUIRED = {
    "dr_grpo": {"constant_length": 3},
    "grpo_two_sided": {"delta": 4.0},
    "dro": {"dro_beta": 0.2},
    "gvpo": {"gvpo_beta": 0.1},
    "r2vpo": {"variance_coef": 0.1},
}


def acting(objective):
    """The modules of the parts that act on the gradient."""
    term = objective.term
    parts = [objective.advantage, *objective.shaping, term, objective.aggregation]
    parts += [objective.correction, objective.filter, *objective.penalties]
    parts += [getattr(objective, name) for name in term.uses]
    parts += [objective.level, objective.ratio_reference] * objective.takes_ratio
    return {part.function.__module__.rpartition(".")[2] for part in parts if part}


def test_the_page_names_the_files_and_definitions():
    rows = re.findall(r"^\| (\d) \| `([^`]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    files = [Path(file) for _, file, _ in rows]
    assert {file.stem for file in files} == acting(
        objectives.algorithm("rec_ring_is")
    ) | COMPOSITION
    for file, (_, _, definitions) in zip(files, rows, strict=True):
        code = (ROOT / file).read_text()
        for name in re.findall(r"`(\w+)`", definitions):
            defined = re.search(rf'^(def|class) {name}\b|^{name}\b.*=|^    "{name}": ', code, re.M)
            assert defined or name == "Objective", (file, name)
    for name in re.findall(r"`(\w+\.py)`", PAGE.read_text()):
        assert (ROOM / name).is_file(), name
    assert {Path(name).stem for name in re.findall(r"`(\w+)\.py`", PAGE.read_text())} == SHARED


def test_the_part_that_the_page_defines_works(tmp_path):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    (tmp_path / "my_mask.py").write_text(code)
    objective = objectives.algorithm(
        "reinforce", mask=f"{tmp_path / 'my_mask.py'}:log_band", log_width=0.3
    )
    assert objective.requires == {"old_logprobs"}
    assert objective.hyperparameters == {"log_width": 0.3}
    assert "log_width" in PAGE.read_text().split("```sh")[1]
