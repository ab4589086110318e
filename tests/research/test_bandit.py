"""The bandit's table, made again and compared with the one of docs/studies.md."""

import re
from pathlib import Path

import pytest

from research import bandit

PAGE = Path(__file__).parents[2] / "docs" / "studies.md"
COLUMNS = (0, 48, 66, 79, 86, 100, None)


def cells(line):
    return [line[a:b].strip() for a, b in zip(COLUMNS, COLUMNS[1:], strict=False)]


def documented():
    table = re.search(r"```\n(algorithm .*?)```", PAGE.read_text(), re.DOTALL)[1]
    return {row[0]: row for row in map(cells, table.splitlines()[1:])}


def printed(capsys, *words):
    assert bandit.main(words) == 0
    return {row[0]: row for row in map(cells, capsys.readouterr().out.splitlines()[1:])}


def test_the_table_of_some_algorithms_is_the_documented_one(capsys):
    rows = printed(capsys, "--algorithms", "rec_oneside_nois")
    assert len(rows) == 2
    assert rows.items() <= documented().items()


def test_the_whole_table_is_the_documented_one(capsys):
    assert printed(capsys) == documented()


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(SystemExit):
        bandit.main(["--algorithms", "reinforse"])
