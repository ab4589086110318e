"""What the repository says of the paper's claims is what its published runs say."""

import json
from pathlib import Path

import pytest

from research.claims import report as claims_report
from tests.research.claims.again import verdicts_again

REPOSITORY = Path(__file__).parents[3]
# A folder a task; results of the design before this one lie in research/results/claims itself.
FOLDERS = sorted(
    path.parent for path in (REPOSITORY / "research" / "results" / "claims").glob("*/verdicts.json")
)


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
