"""How the benchmarks are asked and how they answer: shared options, spreads over rounds, the
table and the JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of the rounds' values."""

    low: float
    median: float
    high: float

    def written(self, form: str, scale: float = 1.0) -> str:
        """`median (low - high)`, each times `scale` and in the format `form`."""
        low, median, high = (
            format(scale * value, form) for value in (self.low, self.median, self.high)
        )
        return f"{median} ({low} - {high})"


def spread(values: Iterable[float]) -> dict[str, float]:
    """The `Spread` of one value a round, ready for JSON."""
    values = [float(value) for value in values]
    return dataclasses.asdict(Spread(min(values), statistics.median(values), max(values)))


def written(name: str, form: str, scale: float = 1.0) -> Callable[[Record], str]:
    """A line of the table: a spread of the record."""
    return lambda record: Spread(**record[name]).written(form, scale)


def table(
    title: str, records: Sequence[Record], lines: dict[str, Callable[[Record], str]]
) -> Table:
    """What a person reads: a column a workload, a line a quantity.

    Args:
        title: above the table.
        records: what was measured, one a workload, each with a "name".
        lines: label to how a record writes it; labels that start with "*" are the figures to look
            at.
    """
    result = Table(
        title=title,
        title_justify="left",
        caption="median (smallest - largest) of the rounds",
        caption_justify="left",
    )
    result.add_column("")
    for record in records:
        result.add_column(record["name"], justify="right", no_wrap=True)
    for label, line in lines.items():
        result.add_row(
            label.removeprefix("*"),
            *(line(record) for record in records),
            style="bold" if label.startswith("*") else None,
        )
    return result


def parser(description: str) -> argparse.ArgumentParser:
    """The options that the benchmarks share."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        help="also a Hugging Face folder, SmolLM2's say",
    )
    result.add_argument(
        "--bf16",
        action="store_true",
        help=(
            "activations in bfloat16 (parameters stay float32), beside the peak of bfloat16"
            " products"
        ),
    )
    number(result, "--repeats", 7, "rounds; each times machine and workloads in turn")
    number(result, "--seconds", 0.5, "shortest timing of each in a round")
    result.add_argument(
        "--matmul",
        type=int,
        metavar="N",
        help="size of the square product (default 2048 on CPU, 8192 elsewhere)",
    )
    result.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    return result


def number(
    to: argparse.ArgumentParser, flag: str, default: Any, meaning: str, metavar: str | None = None
) -> None:
    """Adds an option of a number, or of several if its default is a list; the help repeats it."""
    several = default if isinstance(default, list) else [default]
    options = {"nargs": "+"} if isinstance(default, list) else {}
    text = f"{meaning} (default {' '.join(f'{one:g}' for one in several)})"
    kind = type(several[0])
    to.add_argument(flag, type=kind, default=default, metavar=metavar, help=text, **options)


def write(path: Path | None, result: Record) -> None:
    """Writes a benchmark's result, if asked to."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
