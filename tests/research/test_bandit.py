"""The bandit's table, made again and compared with the one of docs/studies.md."""

import re
from pathlib import Path

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


def test_every_documented_row_is_a_case():
    assert [case.label for case in bandit.cases(None)] == list(documented())


def test_the_whole_table_is_the_documented_one(capsys):
    assert printed(capsys) == documented()
