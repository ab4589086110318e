"""Parts that the reports of studies share: files, Markdown tables, panels of curves."""

import json
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from grre_jax.storage.files import replace

# Curves of many algorithms, told apart on white.
LINES = (
    *("#1f4e9c", "#b3261e", "#1a7f5a", "#e08a00", "#6a3d9a", "#17a2c4", "#8c564b"),
    *("#8a8f98", "#d1478c", "#9aa800", "#2f2f2f", "#b28ae0", "#7cc47f"),
)


def styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns matplotlib's arguments for each label's curve.

    If there are more labels than colours, they come again dotted: dashes are greedy accuracy.
    """
    return {
        label: {"color": LINES[i % len(LINES)], "linestyle": "-" if i < len(LINES) else ":"}
        for i, label in enumerate(labels)
    }


def png(figure: Any, dpi: int = 110) -> bytes:
    """Returns a matplotlib figure as PNG bytes."""
    content = BytesIO()
    figure.savefig(content, dpi=dpi, format="png")
    return content.getvalue()


def as_json(found: Mapping[str, Any]) -> str:
    """Returns a study's results as the text of their file: a line per field, and per row of a field
    that is a list of objects.
    """

    def text(value: Any) -> str:
        rows = isinstance(value, list) and value and isinstance(value[0], dict)
        return "[\n " + ",\n ".join(map(json.dumps, value)) + "]" if rows else json.dumps(value)

    lines = (f"{json.dumps(name)}: {text(value)}" for name, value in found.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_files(output: Path, contents: Mapping[str, str | bytes]) -> None:
    """Writes files by name into a study's folder, each in one rename."""
    for name, content in contents.items():
        replace(output / name, content)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in (headings, *rows)]
    return [lines[0], "| -- " * len(headings) + "|", *lines[1:]]


def interval(low: float, high: float, form: str = "+.3f") -> str:
    """Returns an interval as tables show it."""
    return f"{low:{form}} to {high:{form}}"


def page(template: str, **values: object) -> str:
    """Returns a page of Markdown.

    Args:
        template: paragraphs, whose lines are joined, with {names} of values.
        values: of the names; a list is the lines of a table.
    """
    paragraphs = (" ".join(paragraph.split()) for paragraph in template.strip().split("\n\n"))
    shown = {
        name: "\n".join(map(str, value)) if isinstance(value, list) else value
        for name, value in values.items()
    }
    return "\n\n".join(paragraphs).format(**shown) + "\n"
