"""Writes the tables of docs/performance.md that come from benchmarks/results.

    python scripts/benchmark_tables.py            # exits with 1 if a table is not that of its file
    python scripts/benchmark_tables.py --write    # writes them anew

A table stands between `<!--benchmark NAME-->` and `<!--end-->`; NAME.json is its file.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
PAGE = ROOT / "docs" / "performance.md"
MARKED = re.compile(r"(<!--benchmark (.+?)-->\n).*?(<!--end-->)", re.DOTALL)


def table(name: str) -> str:
    """Returns the table of a result of time_to_accuracy.py in Markdown."""
    import time_to_accuracy

    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    records, levels = result["results"], result["settings"]["levels"]
    rows = [["", *(record["name"] for record in records)], ["--"] * (1 + len(records))]
    for label, cell in time_to_accuracy.lines_of(records, levels).items():
        rows.append([label.removeprefix("*"), *(cell(record) for record in records)])
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"\nStart {result['start_accuracy']:.1%}.\n\n{lines}\n"


def main(arguments: list[str]) -> int:
    """Checks or writes the tables; returns the exit status."""
    text = PAGE.read_text()
    fresh = MARKED.sub(lambda found: found[1] + table(found[2]) + found[3], text)
    if "--write" in arguments:
        PAGE.write_text(fresh)
    return int("--write" not in arguments and fresh != text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
