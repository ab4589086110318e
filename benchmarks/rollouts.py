"""The rollout folder: groups written and read a minute, one group at random, opening many data
sets, and bytes beside compressed arrays.

    python benchmarks/rollouts.py                                       # groups of 8 x 256 tokens,
    16 data sets of 64 python benchmarks/rollouts.py --output benchmarks/results/rollouts.json

A group has token ids with word-like frequencies, three log-probs a token, texts and everything else
that the explorer stores. Written is from groups in memory to data sets sealed and flushed; read is
from a freshly opened folder to groups, checksums checked. By id goes through the index on disk,
which is made first. On a machine that others use too, the figures by the processor's own clock say
what the wall's do not. The folder that is opened has real data sets, whose files are hard links to
one. Storage is all bytes of the folder over those of every field's values, of all groups of a data
set together, compressed by zstd (level 3).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import machine
import numpy as np
import pyarrow
import report

from grre_jax import rollouts
from grre_jax.console import make_console
from grre_jax.rollouts import manifest
from grre_jax.rollouts.schema import FIELDS
from grre_jax.rollouts.storage import local

VOCABULARY = 50_000
BARS = {
    "written": 60_000,
    "read": 120_000,
    "random_ms": 1.0,
    "open_seconds": 2.0,
    "storage": 1.3,
}  # groups a minute, and so on


def make_groups(count: int, completions: int, tokens: int, seed: int = 0) -> list[rollouts.Group]:
    """Groups like an explorer's: every completion is as long as it may be."""
    draw = np.random.default_rng(seed)
    frequency = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    words = [
        "".join(draw.choice(list("abcdefghijklmnopqrstuvwxyz"), draw.integers(1, 8)))
        for _ in range(5000)
    ]
    return [
        _group(draw, i, completions, tokens, frequency / frequency[-1], words) for i in range(count)
    ]


def _group(
    draw: np.random.Generator,
    position: int,
    k: int,
    length: int,
    frequency: np.ndarray,
    words: list[str],
) -> rollouts.Group:
    ids = np.searchsorted(frequency, draw.random(k * length)).astype(np.int32)
    behavior = -draw.exponential(size=k * length).astype(np.float32)
    kept = np.log(draw.uniform(0.95, 1, k * length)).astype(np.float32)
    return rollouts.Group(
        group_id=f"0:{position}:0",
        position=position,
        task="made up",
        question_id=f"q{position}",
        prompt=" ".join(words[i % len(words)] for i in ids[:48]),
        answer=str(position),
        prompt_tokens=ids[:64],
        lengths=[length] * k,
        tokens=ids,
        texts=[" ".join(words[i % len(words)] for i in row) for row in ids.reshape(k, length)],
        rewards=draw.integers(0, 2, k),
        components={"correct": draw.integers(0, 2, k), "format": np.ones(k)},
        finish_reasons=["stop"] * k,
        behavior_logprobs=behavior,
        sampling_logprobs=np.minimum(behavior - kept, 0),
        policy_logprobs=behavior * np.float32(0.9),
        policy_version=[0] * k,
        temperature=0.9,
        top_p=0.95,
        seed=0,
    )


def compressed_bytes(groups: Sequence[rollouts.Group], each: int) -> int:
    """Bytes of the fields' values, of `each` groups at a time, every field's compressed by
    itself.
    """
    codec = pyarrow.Codec("zstd", compression_level=3)
    total = 0
    for start in range(0, len(groups), each):
        records = [rollouts.to_record(group) for group in groups[start : start + each]]
        for name, kind, _ in FIELDS:
            values = [record[name] for record in records]
            if kind == "text":
                raw = "\n".join(values).encode()
            else:
                raw = (
                    np.asarray(values).tobytes()
                    if kind in ("int", "float")
                    else np.concatenate(values).tobytes()
                )
            total += len(codec.compress(raw, asbytes=True)) if raw else 0
    return total


def write_and_read(
    folder: Path, groups: Sequence[rollouts.Group], each: int, lookups: int, seed: int
) -> dict[str, float]:
    """One round: seconds to write and read all, and milliseconds of single groups."""
    start, used = time.perf_counter(), time.process_time()
    for first in range(0, len(groups), each):
        rollouts.write(folder, groups[first : first + each], writer="sampler", policy_version=0)
    written, written_cpu = time.perf_counter() - start, time.process_time() - used
    reader = rollouts.read(folder)
    start, used = time.perf_counter(), time.process_time()
    count = sum(1 for _ in reader)
    read, read_cpu = time.perf_counter() - start, time.process_time() - used
    draw = random.Random(seed)
    numbers = [draw.randrange(count) for _ in range(lookups)]
    by_number = [_seconds(lambda number=number: reader[number]) for number in numbers]
    indexed = _seconds(lambda: reader.lookup(group_id="0:0:0"))
    by_id = [_seconds(lambda number=number: reader.by_id(f"0:{number}:0")) for number in numbers]
    return {
        "written": 60 * count / written,
        "read": 60 * count / read,
        "written_cpu": 60 * count / written_cpu,
        "read_cpu": 60 * count / read_cpu,
        "random_ms": 1e3 * float(np.median(by_number)),
        "random_p99_ms": 1e3 * float(np.quantile(by_number, 0.99)),
        "by_id_ms": 1e3 * float(np.median(by_id)),
        "indexed": 60 * count / indexed,
    }


def _seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def many_data_sets(folder: Path, group: rollouts.Group, count: int) -> None:
    """Makes a folder of `count` data sets of one group each, hard links to the first one's
    files.
    """
    rollouts.write(folder, [group], writer="sampler", policy_version=0)
    (first,) = manifest.Tail(folder).new()
    entries = [
        dataclasses.replace(first, name=f"{first.name}-{i}", positions=((i, 1),))
        for i in range(1, count)
    ]
    for entry in entries:
        (folder / entry.name).mkdir()
        for name in entry.files:
            os.link(folder / first.name / name, folder / entry.name / name)
    manifest.append(folder, *entries)


def open_folder(folder: Path, count: int) -> dict[str, float]:
    """One round: seconds to open the folder, and to open it and read its last group."""
    start = time.perf_counter()
    reader = rollouts.read(folder)
    opened = time.perf_counter() - start
    reader.at(count - 1)
    return {"open_seconds": opened, "open_and_read_seconds": time.perf_counter() - start}


def measure(options: argparse.Namespace) -> report.Record:
    """All rounds, as one record."""
    groups = make_groups(options.groups, options.completions, options.tokens)
    rounds, openings = [], []
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        many_data_sets(Path(place) / "many", groups[0], options.data_sets)
        for number in range(1 + options.repeats):
            folder = Path(place) / f"round{number}"
            found = write_and_read(folder, groups, options.each, options.lookups, number)
            opened = open_folder(Path(place) / "many", options.data_sets)
            if number:  # the first imports and warms up
                rounds.append(found)
                openings.append(opened)
        stored = sum(
            path.stat().st_size
            for path in folder.rglob("*")
            if path.is_file() and local.INDEX not in path.name
        )
    storage = stored / compressed_bytes(groups, options.each)
    return {
        "name": f"{options.completions} x {options.tokens} tokens",
        **{name: report.spread(found[name] for found in rounds) for name in rounds[0]},
        **{name: report.spread(found[name] for found in openings) for name in openings[0]},
        "bytes_a_group": stored / len(groups),
        "storage": storage,
    }


LINES = {
    "*groups written a minute": report.written("written", ",.0f"),
    "*groups read a minute": report.written("read", ",.0f"),
    "groups written a minute of one processor": report.written("written_cpu", ",.0f"),
    "groups read a minute of one processor": report.written("read_cpu", ",.0f"),
    "*one group by number, ms": report.written("random_ms", ".3f"),
    "one group by number, 99th percentile, ms": report.written("random_p99_ms", ".3f"),
    "one group by id, ms": report.written("by_id_ms", ".3f"),
    "groups indexed a minute": report.written("indexed", ",.0f"),
    "*opening the folder of many, s": report.written("open_seconds", ".3f"),
    "opening it and reading a group, s": report.written("open_and_read_seconds", ".3f"),
    "bytes a group": lambda r: f"{r['bytes_a_group']:,.0f}",
    "*bytes, over zstd of raw arrays": lambda r: f"{r['storage']:.3f}",
}


def bars(record: report.Record) -> dict[str, bool]:
    """Which of BARS the medians meet."""
    medians = {name: record[name] if name == "storage" else record[name]["median"] for name in BARS}
    return {
        name: medians[name] >= bar if name in ("written", "read") else medians[name] <= bar
        for name, bar in BARS.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table and writes the JSON; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    report.number(parser, "--groups", 1024, "groups a round")
    report.number(parser, "--each", 64, "groups a data set")
    report.number(parser, "--completions", 8, "completions a group", "K")
    report.number(parser, "--tokens", 256, "tokens a completion")
    report.number(parser, "--lookups", 500, "single groups a round")
    report.number(parser, "--data-sets", 10_000, "data sets of the folder that is opened")
    report.number(parser, "--repeats", 5, "rounds")
    parser.add_argument(
        "--folder",
        type=Path,
        help="a folder on the disk to measure; the system's temporary one if not given",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    options = parser.parse_args(arguments)
    counts = (
        options.groups,
        options.each,
        options.completions,
        options.tokens,
        options.lookups,
        options.data_sets,
        options.repeats,
    )
    if min(counts) < 1:
        parser.error("every number must be at least 1")
    console, about = make_console(), machine.describe()
    console.print(machine.headline(about), highlight=False)
    company = machine.Company()
    record = measure(options)
    about["used_by_others"] = company.share()
    console.print(
        report.table(
            f"rollout folder, {options.groups:,} groups, {options.data_sets:,} data sets opened",
            [record],
            LINES,
        )
    )
    console.print(machine.company_line(about), highlight=False)
    met = bars(record)
    console.print(
        ", ".join(
            f"{name} {'meets' if good else 'misses'} {BARS[name]:,}" for name, good in met.items()
        ),
        highlight=False,
    )
    settings = {
        name: value for name, value in vars(options).items() if name not in ("output", "folder")
    }
    result = {
        "benchmark": "rollouts",
        "machine": about,
        "settings": settings,
        "bars": BARS,
        "met": met,
        "results": [record],
    }
    report.write(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
