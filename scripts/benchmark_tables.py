"""Writes the tables of docs/performance.md that come from benchmarks/results.

    python scripts/benchmark_tables.py            # exits with 1 if a table is not that of its file
    python scripts/benchmark_tables.py --write    # writes them anew

A table stands between `<!--benchmark NAME-->` and `<!--end-->`; NAME.json is its file.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
PAGE = ROOT / "docs" / "performance.md"
MARKED = re.compile(r"(<!--benchmark (.+?)-->\n).*?(<!--end-->)", re.DOTALL)
# The lines of a benchmark's table that are published; of others all.
LABELS = {
    "train_step": (
        "parameters",
        "micro-batches x rows x tokens",
        "step ms",
        "tokens/s",
        "useful tokens/s",
        "fraction of peak",
        "floor / step",
    ),
    "sample": (
        "parameters",
        "rows x (prompt + new) tokens",
        "call ms",
        "tokens/s",
        "fraction of peak",
        "memory floor / call",
    ),
    "peers": ("rows x tokens", "step ms", "tokens/s", "ours / this"),
}


def tables(name: str) -> str:
    """Returns the tables of a result in Markdown, below the machine that it was measured on."""
    import machine

    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    benchmark = result["benchmark"]
    records = result["results"]
    module = importlib.import_module(benchmark)
    if benchmark == "time_to_accuracy":
        lines = module.lines_of(records, result["settings"]["levels"])
    else:
        lines = module.LINES
    lines = {label.removeprefix("*"): line for label, line in lines.items()}
    text = f"\n{machine.headline(result['machine'])}."
    if "start_accuracy" in result:
        text += f" Accuracy at the start: {result['start_accuracy']:.1%}."
    text += "\n\n"
    for workload in dict.fromkeys(record.get("workload", "") for record in records):
        part = [record for record in records if record.get("workload", "") == workload]
        rows = [[workload, *(record["name"] for record in part)], ["--"] * (1 + len(part))]
        if all("versions" in record for record in part):
            rows.append(["versions", *(record["versions"] for record in part)])
        for label in LABELS.get(benchmark, lines):
            rows.append([label, *(lines[label](record) for record in part)])
        text += "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"
    return text


def main(arguments: list[str]) -> int:
    """Checks or writes the tables; returns the exit status."""
    text = PAGE.read_text()
    fresh = MARKED.sub(lambda found: found[1] + tables(found[2]) + found[3], text)
    if "--write" in arguments:
        PAGE.write_text(fresh)
    return int("--write" not in arguments and fresh != text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
