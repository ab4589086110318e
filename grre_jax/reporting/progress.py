"""What a person watches while a run runs: a live bar on a terminal, one compact line now and then anywhere else."""

import time
from collections.abc import Callable, Mapping

from grre_jax.console import make_console

# The scalars shown, in order: (names to look for, label, how to print it).
READINGS: tuple[tuple[tuple[str, ...], str, Callable[[float], str]], ...] = (
    (("reward",), "reward", lambda value: f"{value:.3f}"),
    (("accuracy",), "acc", lambda value: f"{value:.1%}"),
    (("clip_fraction",), "clip", lambda value: f"{value:.1%}"),
    (("tokens_per_second",), "tok/s", lambda value: compact_number(value)),
)

SPINNER_BAR_AND_GAPS = 1 + 8 + 5  # columns of a terminal


class TrainingProgress:
    """Progress through the steps of one phase; a context manager.

    On a terminal: a bar with step, reward, accuracy, clip fraction, tokens/s and time left, drawn in place. Elsewhere (a CI log, a
    pipe, a notebook): one line at the first and the last step and every `interval_seconds` or `interval_steps` between.

    The last value of each scalar stays in view, so evaluations every N steps may be passed by themselves:
    `update(step, {"accuracy": 0.8})`.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        start_step: int = 0,
        description: str = "train",
        console=None,
        interval_seconds: float = 15.0,
        interval_steps: int | None = None,
        enabled: bool = True,
    ):
        """Draws nothing until entered.

        Args:
          total_steps: the step at which the phase ends.
          start_step: the step at which it starts (a resumed run's checkpoint).
          description: the phase's name, at the start of the bar.
          console: the rich console; one on standard output by default.
          interval_seconds: off a terminal, the most seconds between two lines; a line may wait for the next update.
          interval_steps: off a terminal, also print whenever this many steps have passed.
          enabled: False shows nothing at all (every process but the first of a pod).
        """
        self.total_steps = int(total_steps)
        self.start_step = int(start_step)
        self.description = description
        self.enabled = enabled
        self.interval_seconds = interval_seconds
        self.interval_steps = interval_steps
        self.console = console if console is not None or not enabled else make_console()
        self.live = enabled and is_live(self.console)
        self.step = self.start_step
        self.readings: dict[str, float] = {}
        self._phase = ""
        self._bar = self._task = None
        self._clock: tuple[float, int] | None = None  # when and at which step the first update came: compile time is no pace
        self._printed: tuple[float, int, dict[str, float]] | None = None  # when, at which step and with which readings a line was printed

    def __enter__(self) -> "TrainingProgress":
        if self.live:
            self._bar = _make_bar(self.console)
            self._task = self._bar.add_task(self.description, total=self.total_steps, completed=self.step, readings="", left="")
            self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._redraw()
            self._bar.stop()
            self._bar = None
        elif self._printed is not None and self._printed[1:] != (self.step, self.readings):
            self._print_line()

    def update(self, step: int, scalars: Mapping[str, object] | None = None) -> None:
        """Takes in the state after `step` updates.

        Args:
          step: the step just finished, counted from the start of the run (not of this process).
          scalars: any of the run's scalars; those that are not shown are ignored.
        """
        if not self.enabled:
            return
        self.step = int(step)
        for names, label, _ in READINGS:
            for name in names:
                if scalars and name in scalars:
                    self.readings[label] = float(scalars[name])
        self._phase = ""
        now = time.monotonic()
        if self._clock is None:
            self._clock = (now, self.step)
        if self._bar is not None:
            self._redraw()
        elif not self.live and self._due(now):
            self._print_line()

    def phase(self, text: str) -> None:
        """Says what is going on between updates ("compiling", "evaluating"); the next update clears it. Live display only."""
        if self.enabled:
            self._phase = text
            if self._bar is not None:
                self._redraw()

    def message(self, text: str) -> None:
        """Prints a line that stays, above the bar where there is one."""
        if self.enabled:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """Seconds to the end at the pace since the first update, or None before there is a pace."""
        if self._clock is None or self.step <= self._clock[1]:
            return None
        pace = (time.monotonic() - self._clock[0]) / (self.step - self._clock[1])
        return max(self.total_steps - self.step, 0) * pace

    def line(self) -> str:
        """The state as one compact line: `train   120/400   30%  reward 0.412  acc 83.2%  clip 1.2%  12.3k tok/s  left 1m32s`."""
        width = len(str(self.total_steps))
        share = self.step / self.total_steps if self.total_steps else 1.0
        return (
            f"{self.description} {self.step:>{width}}/{self.total_steps} {share:>4.0%}  {self._readings_text()}{self._left_text('  left ')}"
        )

    def _due(self, now: float) -> bool:
        if self._printed is None or self.step >= self.total_steps > self._printed[1]:
            return True
        at, step, _ = self._printed
        return now - at >= self.interval_seconds or (self.interval_steps is not None and self.step - step >= self.interval_steps)

    def _print_line(self) -> None:
        self._printed = (time.monotonic(), self.step, dict(self.readings))
        self.message(self.line().rstrip())
        # A pipe is block-buffered: without this a CI log shows nothing for minutes.
        self.console.file.flush()

    def _redraw(self) -> None:
        left = self._left_text("left ")
        # On a narrow terminal the last readings give way, not the step: rich would shorten every column a little.
        count = len(f"{self.total_steps}/{self.total_steps}")
        room = self.console.width - len(self.description) - count - len(left) - SPINNER_BAR_AND_GAPS
        self._bar.update(self._task, completed=self.step, readings=self._phase or self._readings_text(room), left=left, refresh=False)

    def _readings_text(self, room: int | None = None) -> str:
        text = ""
        for _, label, form in READINGS:
            if label in self.readings:
                value = form(self.readings[label])
                longer = text + ("  " if text else "") + (f"{value} {label}" if label == "tok/s" else f"{label} {value}")
                if room is not None and len(longer) > room:
                    break
                text = longer
        return text

    def _left_text(self, before: str) -> str:
        left = self.seconds_left()
        return "" if left is None or self.step >= self.total_steps else before + compact_duration(left)


def print_header(summary: Mapping[str, object], title: str = "grre_jax", console=None) -> None:
    """Prints what is about to run, once, before the bar.

    Args:
      summary: field to value, in the order to show; None is left out.
      title: the heading.
      console: the rich console; one on standard output by default.
    """
    from rich.table import Table
    from rich.text import Text

    console = console if console is not None else make_console()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for field, value in summary.items():
        if value is not None:
            grid.add_row(str(field), Text(_shown(value)))
    console.print(Text(title, style="bold"))
    console.print(grid)
    console.print()


def is_live(console) -> bool:
    """Whether the console can redraw in place: a real terminal, neither a dumb one nor a notebook."""
    return console.is_terminal and not console.is_dumb_terminal and not console.is_jupyter


def speaks_unicode(console) -> bool:
    """Whether the console's encoding has sparklines, ticks and dots."""
    return console.encoding.lower().startswith("utf")


def compact_number(value: float) -> str:
    """Three digits and a suffix: 950, 12.3k, 4.56M, 1.2B."""
    for scale, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}" if value == value else "nan"


def compact_duration(seconds: float) -> str:
    """The two largest units: 8s, 1m32s, 2h05m, 3d04h."""
    whole = int(round(seconds))
    for size, unit, below, unit_below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // below:02d}{unit_below}"
    return f"{whole}s"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _make_bar(console):
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    unicode = speaks_unicode(console)
    return Progress(
        SpinnerColumn("dots" if unicode else "line", finished_text="[green]✓[/]" if unicode else "[green]ok[/]"),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
        MofNCompleteColumn(),
        TextColumn("{task.fields[readings]}", markup=False),
        TextColumn("{task.fields[left]}", style="dim"),
        console=console,
        expand=True,
    )
