"""Checks the measured numbers of pages against the published results, or writes them anew.

    python -m research.doc_numbers            # names every number that is not that of its file
    python -m research.doc_numbers --write    # replaces them, and the tables

A measured number is followed by a comment that says where it comes from, which no reader sees:

    ends at 0.876<!--arithmetic .headlines/sync 20/GRPO/.judged/.greedy-->

The first word names a file of `FILES`, the rest leads to the value: ".name" is a field, a number
an element of a list, "*name" that field of each object of a list, and other words choose, of a list
of objects, those with such a value. A list of numbers stands for its mean; written as "3/10", for
its sum of its count. The sign is given where the page gives one. A table between
`<!--table NAME-->` and `<!--end-->` is the one of verdicts in that file.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from research.claims.report import verdict_table

ROOT = Path(__file__).parents[1]
# With the fewest digits after the point that a result has there; thresholds have two.
PAGES = {"README.md": 2, "docs/which-algorithm.md": 2, "docs/studies.md": 3}
FILES = {
    "staleness": "research/results/staleness/staleness.json",
    "sums": "research/results/compare/sums/compare.json",
    # "arithmetic" and so on: a study of the claims is named by its task.
    **{
        path.parent.name: str(path)
        for path in sorted((ROOT / "research/results/claims").glob("*/verdicts.json"))
    },
}
REFERENCE = re.compile(r"([+-]?\d+(?:\.\d+|/\d+))(\s?<!--(\w+) (.+?)-->)")
TABLE = re.compile(r"(<!--table (\w+)-->\n\n)(.*?)(\n\n<!--end-->)", re.DOTALL)
# What looks like a result: an accuracy, or a count of runs. Code and addresses are left out.
RESULT = r"(?<![\w.])[+-]?(?:0\.\d{%d,3}|\d+/(?:10|18))(?![\w%%])"
LEFT_OUT = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|JAX 0\.10|Adam \([^)]*\)", re.DOTALL)


def value(found: Any, path: str) -> Any:
    """Returns what a path leads to.

    Raises:
        KeyError: it leads to nothing, or to several.
    """
    for word in path.split("/"):
        if word.startswith("."):
            if isinstance(found, list):
                if len(found) != 1:
                    raise KeyError(f"{path}: {len(found)} objects at {word}")
                (found,) = found
            found = found[word[1:]]
        elif word.startswith("*"):
            found = [one[word[1:]] for one in found]
        elif re.fullmatch(r"-?\d+", word):
            found = found[int(word)]
        else:
            found = [one for one in found if word in map(_word, one.values())]
    return found


def _word(one: Any) -> str:
    """A field as a word of a path; of what is no text or number, none."""
    return one if isinstance(one, str) else f"{one:g}" if isinstance(one, int | float) else ""


def shown(text: str, found: Any) -> str:
    """Returns a value in the form of the number that stands on the page."""
    if "/" in text:
        return f"{round(sum(found))}/{len(found)}"
    number, digits = float(np.mean(found)), len(text.partition(".")[2])
    return f"{number:+.{digits}f}" if text[0] in "+-" else f"{abs(number):.{digits}f}"


def renewed(page: str, results: dict[str, Any]) -> str:
    """Returns a page with the numbers and tables of the results."""

    def number(match: re.Match) -> str:
        text, comment, name, path = match.groups()
        return shown(text, value(results[name], path)) + comment

    def table(match: re.Match) -> str:
        begin, name, _, end = match.groups()
        head, rule, *rows = verdict_table(results[name])
        # As mdformat writes it.
        return begin + "\n".join([head, rule.replace("---", " -- "), *rows]) + end

    return TABLE.sub(table, REFERENCE.sub(number, page))


def unreferenced(page: str, digits: int) -> list[str]:
    """Returns the numbers of a page that look like results and say not where they come from."""
    return re.findall(RESULT % digits, LEFT_OUT.sub("", REFERENCE.sub("", TABLE.sub("", page))))


def main(write: bool) -> int:
    """Returns the number of pages that are wrong, after printing of each what is."""
    results = {name: json.loads((ROOT / path).read_text()) for name, path in FILES.items()}
    wrong = 0
    for name, digits in PAGES.items():
        page = (ROOT / name).read_text()
        new = renewed(page, results)
        pairs = zip(page.splitlines(), new.splitlines(), strict=False)
        lines = [f"{name}: {line!r} should be {now!r}" for line, now in pairs if line != now]
        lines += [f"{name}: {number} has no reference" for number in unreferenced(page, digits)]
        print(*lines, sep="\n", end="\n" if lines else "")
        wrong += bool(lines)
        if write:
            (ROOT / name).write_text(new)
    return wrong


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
