"""The console that every command prints on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def make_console(quiet: bool = False, stderr: bool = False) -> Console:
    """Returns a rich console that prints every string unchanged.

    Formulas, file names, prompts and error texts contain square brackets and colons, which rich
    would read as markup and emoji codes. Styles are therefore given as `rich.text.Text` or
    `style=`.

    Args:
        quiet: print nothing.
        stderr: print on standard error, not on standard output.

    Returns:
        The console. Outside a terminal it is 120 columns wide unless COLUMNS is set, so that log
        lines are not wrapped.
    """
    from rich.console import Console

    options = {"quiet": quiet, "stderr": stderr, "markup": False, "emoji": False}
    console = Console(**options)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console = Console(width=120, **options)
    return console


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """Returns a table whose cells are folded on a narrow console, not cut.

    Args:
        columns: the titles; none for a table without a head.
        rows: the cells of each.
        title: of the table.
    """
    from rich.table import Table

    table = Table(title=title or None, show_header=bool(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


@contextlib.contextmanager
def progress_bar(total: int, label: str) -> Iterator[Callable[..., None]]:
    """Shows a bar on a terminal's standard error while the block runs.

    Args:
        total: steps to the end.
        label: of the things counted.

    Yields:
        The function that advances the bar, by one or a given number of steps.
    """
    from rich import progress

    console = make_console(stderr=True)
    with progress.Progress(
        *progress.Progress.get_default_columns(),
        progress.MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps=1: bar.advance(task, steps)
