"""Rows that are written to a file and imported."""

import json
import tempfile
from pathlib import Path

import pyarrow
import pyarrow.parquet

from grre_jax import rollouts


def imported(folder, rows, kind="jsonl", **options):
    """Returns the reader of rows from a file a.jsonl, or a.parquet for another kind."""
    place = Path(tempfile.mkdtemp(dir=folder))
    path = place / ("a.jsonl" if kind == "jsonl" else "a.parquet")
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    rollouts.import_rows(kind, path, place / "r", **options)
    return rollouts.read(place / "r")
