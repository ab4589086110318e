"""What the benchmarks share: options, spreads over rounds, the table and the JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import machine
from rich.table import Table

from grre_jax.console import make_console
from grre_jax.storage.files import replace

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of the rounds' values."""

    low: float
    median: float
    high: float

    def written(self, form: str, scale: float = 1.0) -> str:
        """`median (low - high)`, each times `scale` and in the format `form`."""
        values = (self.median, self.low, self.high)
        return "{} ({} - {})".format(*(format(scale * value, form) for value in values))


def spread(values: Iterable[float]) -> dict[str, float]:
    """The `Spread` of one value a round, ready for JSON."""
    values = [float(value) for value in values]
    return dataclasses.asdict(Spread(min(values), statistics.median(values), max(values)))


def written(name: str, form: str, scale: float = 1.0) -> Callable[[Record], str]:
    """A line of the table: a spread of the record, empty if the record lacks it."""

    def line(record: Record) -> str:
        return Spread(**record[name]).written(form, scale) if name in record else ""

    return line


def table(
    title: str, records: Sequence[Record], lines: dict[str, Callable[[Record], str]]
) -> Table:
    """What a person reads: a column a workload, a line a quantity.

    Args:
        title: above the table.
        records: what was measured, one a workload, each with a "name".
        lines: label to how a record writes it; labels that start with "*" are printed bold.
    """
    result = Table(title=title, caption="median (smallest - largest) of the rounds")
    result.add_column("")
    for record in records:
        result.add_column(record["name"], justify="right", no_wrap=True)
    for label, line in lines.items():
        style = "bold" if label.startswith("*") else None
        result.add_row(label.removeprefix("*"), *map(line, records), style=style)
    return result


def parser(description: str, repeats: int, seconds: float) -> argparse.ArgumentParser:
    """The options of what is timed in rounds, with these defaults."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    number(result, "--repeats", repeats, "rounds; each times everything once, in turns")
    number(result, "--seconds", seconds, "shortest timing of each in a round")
    result.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    return result


def own_parser(description: str) -> argparse.ArgumentParser:
    """Those options, and what is measured beside the machine."""
    result = parser(description, 7, 0.5)
    add = result.add_argument
    add("--model", type=Path, metavar="PATH", help="also a Hugging Face folder, SmolLM2's say")
    add("--bf16", action="store_true", help="activations in bfloat16; parameters stay float32")
    add("--matmul", type=int, metavar="N", help="size of the product (default 2048; GPU, TPU 8192)")
    return result


def number(to: argparse.ArgumentParser, flag: str, default: Any, meaning: str) -> None:
    """Adds an option of a number, or of several if its default is a list; the help repeats it."""
    several = default if isinstance(default, list) else [default]
    count = "+" if isinstance(default, list) else None
    text = f"{meaning} (default {' '.join(f'{one:g}' for one in several)})"
    to.add_argument(flag, type=type(several[0]), default=default, nargs=count, help=text)


def run(
    name: str,
    options: argparse.Namespace,
    make: Callable[[], Sequence[Any]],
    record: Callable[[Any, dict[str, Any]], Record],
    lines: dict[str, Callable[[Record], str]],
) -> int:
    """Measures workloads beside the machine, prints the table and writes the JSON.

    Args:
        name: of the benchmark.
        options: of `own_parser`.
        make: builds the workloads; see `machine.rounds`.
        record: makes a workload's record of its rounds.
        lines: of the table.

    Returns:
        The exit status.
    """
    console = make_console()
    about = machine.describe()
    console.print(machine.headline(about), highlight=False)
    workloads = make()
    dtype = "bfloat16" if options.bf16 else "float32"
    size = options.matmul or machine.default_matmul_size()
    company = machine.Company()
    peak = machine.matmul_probe(size, jnp.dtype(dtype), options.seconds)
    rounds = machine.rounds(workloads, peak, options.repeats, options.seconds)
    records = [record(work, times) for work, times in zip(workloads, rounds, strict=True)]
    about["used_by_others"] = company.share()
    title = f"{name}, {dtype}, beside products of {size} x {size}"
    console.print(table(title, records, lines))
    console.print(machine.company_line(about), highlight=False)
    settings = {
        "dtype": dtype,
        "repeats": options.repeats,
        "seconds": options.seconds,
        "matmul_size": size,
    }
    write(
        options.output,
        {"benchmark": name, "machine": about, "settings": settings, "results": records},
    )
    return 0


def write(path: Path | None, result: Record) -> None:
    """Writes a benchmark's result, if there is a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json.dumps(result, indent=2) + "\n")
