"""What the repository says of the paper's claims is what its published runs say."""

import json
from pathlib import Path

import pytest

from research import doc_numbers
from research.claims import report as claims_report
from tests.research.claims.again import verdicts_again

REPOSITORY = Path(__file__).parents[3]
# A folder a task; results of the design before this one lie in research/results/claims itself.
FOLDERS = sorted(
    path.parent for path in (REPOSITORY / "research" / "results" / "claims").glob("*/verdicts.json")
)


@pytest.fixture(scope="module")
def numbers():
    return doc_numbers


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_published_verdicts_follow_from_the_published_cells(folder):
    found = json.loads((folder / "verdicts.json").read_text())
    for name in ("claims", "claims_again"):
        told = {
            (claim["name"], kind): (
                claim["verdict"][kind],
                [row[kind]["outcome"] for row in claim["core"]],
            )
            for claim in found[name]
            for kind in ("greedy", "sampled")
        }
        assert told == verdicts_again(found, name)
    assert (folder / "claims.md").read_text() == claims_report.tables(found)
    design = json.loads((folder / "design.json").read_text())
    assert {name: found[name] for name in ("seeds", "again", "rates", "power")} == {
        name: design[name] for name in ("seeds", "again", "rates", "power")
    }


def test_every_measured_number_of_the_pages_is_that_of_its_file(numbers, capsys):
    assert numbers.main(write=False) == 0, capsys.readouterr().out


def test_a_number_that_is_not_that_of_its_file_is_named_and_replaced(numbers):
    results = {"study": {"cells": [{"algorithm": "a", "final": [0.5, 0.7], "lost": [1, 0]}]}}
    page = (
        "ends at 0.601<!--study .cells/a/.final-->, {}<!--study .cells/a/.final/-1-->, lost"
        " {}<!--study .cells/a/.lost-->, led by +0.60<!--study .cells/a/.final-->"
    )
    wrong = page.format("0.7", "2/2")
    right = page.format("0.7", "1/2").replace("0.601", "0.600")
    assert numbers.renewed(wrong, results) == right
    assert numbers.unreferenced(right, 2) == []
    assert numbers.unreferenced("0.91 and 3/10, `0.12`, 0.5, (.6, 2)", 2) == ["0.91", "3/10"]
    rates = {"cells": [{"rate": 1e-3, "mean": 0.1}, {"rate": 2e-3, "mean": 0.2}]}
    assert numbers.value(rates, ".cells/0.002/.mean") == 0.2
    assert numbers.value(rates, ".cells/*mean") == [0.1, 0.2]
    with pytest.raises(KeyError, match="0 objects"):
        numbers.value(results["study"], ".cells/b/.final")


def test_a_wrong_page_is_named_and_written_anew(numbers, tmp_path, monkeypatch, capsys):
    (tmp_path / "study.json").write_text('{"share": 0.25}')
    (tmp_path / "page.md").write_text("ends at 0.31<!--study .share-->\n")
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    monkeypatch.setattr(numbers, "FILES", {"study": "study.json"})
    monkeypatch.setattr(numbers, "PAGES", {"page.md": 2})
    assert numbers.main(write=False) == 1 and "0.31" in capsys.readouterr().out
    assert numbers.main(write=True) == 1
    assert (tmp_path / "page.md").read_text() == "ends at 0.25<!--study .share-->\n"
    assert numbers.main(write=False) == 0


def test_a_table_of_verdicts_is_made_from_its_file(numbers):
    claim = {
        "name": "C1",
        "statement": "It is so",
        "verdict": {"greedy": "open", "sampled": "open"},
    }
    found = {"claims": [claim | {"core": [{"greedy": {"outcome": "open"}}]}], "claims_again": []}
    page = "before\n\n<!--table study-->\n\nstale\n\n<!--end-->\n\nafter"
    new = numbers.renewed(page, {"study": found})
    assert "stale" not in new and new.startswith("before") and new.endswith("after")
    assert "| C1 It is so | **open** | 0, 0, 1, 0 | open | – | – |" in new
    assert numbers.renewed(new, {"study": found}) == new
