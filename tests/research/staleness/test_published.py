"""What the repository says of the staleness benchmark is what its published run says."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from research.entrants import ENTRIES
from research.in_graph.batch import Scale
from research.runs import seeds_of
from research.staleness import report as staleness_report
from research.staleness import study as staleness_study
from research.statistics import estimate

REPOSITORY = Path(__file__).parents[3]
PUBLISHED = REPOSITORY / "research" / "results" / "staleness"


@pytest.fixture(scope="module")
def found():
    return json.loads((PUBLISHED / "staleness.json").read_text())


def test_the_benchmark_was_run_in_full(found):
    grid = staleness_study.Grid(
        Scale(),
        ENTRIES,
        tuple(staleness_study.REGIMES),
        tuple(seeds_of(None, staleness_study.SEEDS, 300)),
    )
    assert (found["seeds"], found["steps"], found["rate"]) == (
        list(grid.seeds),
        grid.steps,
        grid.rate,
    ) and found["machines"]
    assert {(cell["algorithm"], cell["regime"]) for cell in found["cells"]} == set(grid.cells)
    for cell in found["cells"]:
        assert cell["seeds"] == found["seeds"][: len(cell["seeds"])]
        assert all(len(ends) == len(cell["seeds"]) for ends in cell["final"].values())


def test_the_ranking_follows_from_the_cells(found):
    scores = {}
    for cell in found["cells"]:
        final = next(iter(cell["final"].values()))
        ends = dict(zip(cell["seeds"], final, strict=True))
        filled = np.array([ends.get(seed, np.mean(final)) for seed in found["seeds"]])
        scores.setdefault(cell["algorithm"], []).append(filled)
    scores = {name: np.mean(rows, axis=0) for name, rows in scores.items()}
    assert [row["algorithm"] for row in found["ranking"]] == sorted(
        scores, key=lambda name: -scores[name].mean()
    )
    first = found["ranking"][0]["algorithm"]
    for row in found["ranking"]:
        for values, told in (
            (scores[row["algorithm"]], row),
            (scores[first] - scores[row["algorithm"]], row["behind"]),
        ):
            again = estimate(values)
            assert [again.mean, again.low, again.high] == pytest.approx(
                [told["mean"], told["low"], told["high"]], abs=1e-5
            )


def test_page_and_picture_are_made_of_the_figures(found):
    assert (PUBLISHED / "staleness.md").read_text() == staleness_report.tables(found)
    with (
        Image.open(PUBLISHED / "staleness.png") as published,
        Image.open(io.BytesIO(staleness_report.heat_maps(found))) as drawn,
    ):
        assert (
            abs(published.size[1] - drawn.size[1]) <= 40
            and abs(published.size[0] - drawn.size[0]) <= 40
        )


def test_what_is_told_of_it_is_so(found):
    open_to_first = [
        row["algorithm"]
        for row in found["ranking"]
        if row["behind"]["low"] <= 0 <= row["behind"]["high"]
    ]
    assert open_to_first == [row["algorithm"] for row in found["ranking"][:5]], (
        "the first five of the ranking are not told apart"
    )
    collapses = {
        c["algorithm"]
        for c in found["cells"]
        if c["collapsed"] > 0 and not c["regime"].startswith("reuse")
    }
    assert collapses == {"REINFORCE", "RED-Drop", "REC-TwoSide-NoIS"}
