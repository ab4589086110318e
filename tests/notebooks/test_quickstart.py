"""The quickstart notebook, executed from its first cell to its last with few steps."""

import json

import pytest

from grre_jax.config import load_file

from .test_notebooks import QUICKSTART as FEW, ROOT, execute, printed, read, shown

FIELDS = ("training.steps", "regime.sync_interval", "warm_start.steps", "evaluation.questions")


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run with few steps, and the folder it ran in."""
    folder = tmp_path_factory.mktemp("quickstart")
    return execute("quickstart", FEW, folder), folder


@pytest.mark.slow
def test_shows_curves_rollouts_and_answers(executed):
    notebook, folder = executed
    assert len(shown(notebook, "image/png")) == 4  # pushes, curves, staleness, both runs' curves
    # 4 steps of 16 groups, in the data sets of versions 0 and 2.
    assert "64 groups, in 2 data sets sampled by versions [0, 2]" in printed(notebook)
    assert (folder / "runs" / "quickstart" / "plots" / "overview.png").is_file()
    assert (folder / "runs" / "quickstart" / "model" / "model.safetensors").is_file()


def test_its_values_are_the_embedded_defaults():
    (source,) = (
        cell.source
        for cell in read("quickstart").cells
        if "parameters" in cell.metadata.get("tags", ())
    )
    values = {}
    exec(source, values)
    default = json.loads(load_file(ROOT / "configs" / "arithmetic.py").to_json())
    for name, field in zip(FEW, FIELDS, strict=True):
        section, _, key = field.partition(".")
        assert values[name] == default[section][key]
