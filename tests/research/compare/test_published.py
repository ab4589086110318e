"""What the repository says of the comparisons with a real language model is what their published
runs say.
"""

import dataclasses
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from grre_jax.config import Config, load_file
from grre_jax.training.config.run import renamed
from research.compare import report as compare_report
from research.compare import study as compare_study

REPOSITORY = Path(__file__).parents[3]
FOLDERS = sorted((REPOSITORY / "research" / "results" / "compare").iterdir())


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request):
    return request.param


@pytest.fixture
def found(folder):
    return json.loads((folder / "compare.json").read_text())


def test_every_algorithm_ran_in_every_regime(found):
    assert {(cell["regime"], cell["algorithm"]) for cell in found["cells"]} == {
        (regime, label) for regime in compare_study.REGIMES for label in compare_study.LABELS
    }
    assert found["machines"]


def published_fields(value, published, default):
    """A value without the fields that were added since; these have their defaults."""
    if not isinstance(published, dict):
        return value
    added = value.keys() - published.keys()
    assert {name: value[name] for name in added} == {name: default[name] for name in added}
    return {
        name: published_fields(value[name], published[name], (default or {}).get(name))
        for name in value.keys() & published.keys()
    }


def test_the_runs_had_the_shipped_configuration(found):
    """But for the type of its numbers, which its docstring names."""
    config = load_file(REPOSITORY / "configs" / f"{found['configuration']['name']}.py")
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model, compute_dtype=found["configuration"]["model"]["compute_dtype"]
        ),
    )
    shared, defaults = compare_study._shared(config), compare_study._shared(Config(config.name))
    published = renamed(found["configuration"])
    assert published_fields(shared, published, defaults) == published


def test_page_and_picture_are_made_of_the_figures(folder, found):
    assert (folder / "compare.md").read_text() == compare_report.table(found)
    with (
        Image.open(folder / "compare.png") as published,
        Image.open(io.BytesIO(compare_report.curves(found))) as drawn,
    ):
        assert (
            abs(published.size[1] - drawn.size[1]) <= 40
            and abs(published.size[0] - drawn.size[0]) <= 40
        )
