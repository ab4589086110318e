"""Changes single operators of the package, one at a time, and reports what no test notices.

    python scripts/mutations.py                    # 60 changes, drawn by a seed
    python scripts/mutations.py --area packing     # those of one area
    python scripts/mutations.py --seed 1 --count 12

Works in a copy of the committed tree. A change that the tests of its area pass is printed with its
line: it needs a test, unless it changes nothing that a user can notice.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Modules of an area, and the tests that are to notice.
AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "objectives": (
        ("objectives", "objectives/parts"),
        ("tests/objectives", "tests/test_docstring_examples.py"),
    ),
    "sampling": (
        ("sampling", "sampling/decoding", "sampling/distributions"),
        (
            "tests/sampling",
            "tests/generation",
            "tests/models/test_experts.py",
            "tests/training/actors/test_calls.py",
        ),
    ),
    "packing": (
        ("training/data/pack.py", "training/step.py"),
        (
            "tests/training/data",
            "tests/training/test_step.py",
            "tests/training/runs/test_routes.py",
        ),
    ),
    "plan": (
        ("training/data/plan.py", "training/data/batches.py"),
        ("tests/training/data", "tests/training/config", "tests/explain"),
    ),
    "checkpoints": (
        ("training/checkpoints.py",),
        ("tests/training/checkpoints", "tests/training/runs"),
    ),
}
SWAPS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
SECONDS = 900  # of the tests of one change


class Mutation(NamedTuple):
    """A change of one operator.

    Attributes:
        area: in AREAS.
        file: below the package.
        line: number of the line, from 1.
        start, end: of the operator in the file's text.
        old, new: the operator.
    """

    area: str
    file: str
    line: int
    start: int
    end: int
    old: str
    new: str


def files(area: str) -> list[Path]:
    """Returns the modules of an area."""
    paths = [ROOT / "grre_jax" / name for name in AREAS[area][0]]
    modules = ([path] if path.suffix else sorted(path.glob("*.py")) for path in paths)
    return list(itertools.chain.from_iterable(modules))


def mutations(area: str, file: Path) -> Iterator[Mutation]:
    """Yields all changes of the functions of a module."""
    text = file.read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def between(left: ast.AST, right: ast.AST, operator: ast.AST) -> Iterator[Mutation]:
        swap = SWAPS.get(type(operator))
        first = starts[left.end_lineno - 1] + left.end_col_offset
        last = starts[right.lineno - 1] + right.col_offset
        place = text.find(swap[0], first, last) if swap else -1
        if place >= 0:
            name = file.relative_to(ROOT / "grre_jax").as_posix()
            line = text.count("\n", 0, place) + 1
            yield Mutation(area, name, line, place, place + len(swap[0]), *swap)

    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    for node in {n for function in functions for part in function.body for n in ast.walk(part)}:
        if isinstance(node, ast.Compare):
            yield from between(node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], node.op)


def drawn(area: str, count: int, seed: int) -> list[Mutation]:
    """Returns changes of an area, none twice."""
    found = sorted({mutation for file in files(area) for mutation in mutations(area, file)})
    return random.Random(f"{area} {seed}").sample(found, count)


def is_noticed(mutation: Mutation, copy: Path) -> bool:
    """True if the tests of the area fail with a change."""
    file = copy / "grre_jax" / mutation.file
    text = file.read_text()
    file.write_text(text[: mutation.start] + mutation.new + text[mutation.end :])
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *AREAS[mutation.area][1]],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy)},
            capture_output=True,
            timeout=SECONDS,
        )
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(text)


def main() -> int:
    """Runs the tests with each change; returns the number of changes that they pass."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--area", choices=AREAS, action="append")
    parser.add_argument("--count", type=int, default=12, help="changes of each area")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
        for area in arguments.area or AREAS:
            for mutation in drawn(area, arguments.count, arguments.seed):
                noticed = is_noticed(mutation, copy)
                missed += not noticed
                word = "noticed" if noticed else "MISSED "
                change = f"{mutation.old} -> {mutation.new}"
                print(f"{word} {mutation.file}:{mutation.line}: {change}", flush=True)
    print(f"{missed} missed")
    return missed


if __name__ == "__main__":
    sys.exit(main())
