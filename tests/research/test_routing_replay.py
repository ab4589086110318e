"""The published table of routing replay, made again of its two halves."""

import json

from research import routing_replay

from . import conftest

PUBLISHED = conftest.FOLDER.parents[1] / "research" / "results" / "routing_replay"
MARK = ", routes replayed"


def test_two_comparisons_are_one(tmp_path):
    text = (PUBLISHED / "compare.json").read_text()
    found = json.loads(text)
    for name, replayed in (("without", False), ("replayed", True)):
        cells = [
            cell | {"regime": cell["regime"].removesuffix(MARK)}
            for cell in found["cells"]
            if cell["regime"].endswith(MARK) == replayed
        ]
        folder = tmp_path / name
        folder.mkdir()
        (folder / "compare.json").write_text(json.dumps(found | {"cells": cells}))
    routing_replay.joined(tmp_path / "without", tmp_path / "replayed", tmp_path / "out")
    assert (tmp_path / "out" / "compare.json").read_text() == text
    assert (tmp_path / "out" / "compare.md").read_text() == (PUBLISHED / "compare.md").read_text()
