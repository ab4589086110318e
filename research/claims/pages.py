"""Writes the tables and figures of docs/paper.md and docs/which-algorithm.md from published runs.

    python -m research.claims.pages            # exits with 1 if a table is not that of the runs
    python -m research.claims.pages --write    # writes tables and figures anew

A table stands between `<!--claims TASK: BLOCK-->` and `<!--end-->`, with a block of `report.block`.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

from grre_jax.storage.files import replace
from research.claims import report
from research.claims.analysis import Results
from research.claims.claims import FIRST_TASK

ROOT = Path(__file__).parents[2]
PAGES = ("docs/paper.md", "docs/which-algorithm.md")
FIGURES = ROOT / "docs" / "images" / "paper"
MARKED = re.compile(r"(<!--claims (\w+): (.+?)-->\n).*?(<!--end-->)", re.DOTALL)


@cache
def published(task: str) -> Results:
    """Returns the published runs of a task."""
    return Results.read(ROOT / "research" / "results" / "claims" / task / "runs.jsonl")


def fresh(text: str) -> str:
    """Returns a page with the tables of the published runs."""
    return MARKED.sub(
        lambda found: f"{found[1]}\n{report.block(found[3], published(found[2]))}\n\n{found[4]}",
        text,
    )


def main(arguments: list[str]) -> int:
    """Checks or writes the pages; returns the exit status."""
    write = "--write" in arguments
    stale = []
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        if fresh(text) != text:
            stale.append(name)
        if write:
            replace(ROOT / name, fresh(text))
    if write:
        for name, draw in report.figures(published(FIRST_TASK)).items():
            replace(FIGURES / f"{name}.png", draw())
        return 0
    print("\n".join(f"{name}: a table is not that of the runs" for name in stale))
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
