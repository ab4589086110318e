"""Progress of a run on the console: rich's bar on a terminal, lines in a file or a notebook."""

import time
from collections.abc import Mapping
from datetime import timedelta

from grre_jax.console import make_console, make_table
from grre_jax.reporting.metric_names import written

# The scalars shown, in order, by the kind of their row.
READINGS = {
    "train": ("reward", "accuracy", "clip_fraction", "tokens_per_second"),
    "eval": ("accuracy", "greedy_accuracy", "reward", "kl_to_start", "response_length"),
    "warm_start": ("loss", "entropy", "tokens_per_second"),
}

LINE_SECONDS = 30.0  # off a terminal, between two lines; a line may wait for the next update


class TrainingProgress:
    """Progress through the steps of one phase; a context manager.

    On a terminal: rich's bar with step, readings and time left; evaluations are lines above it.
    Elsewhere: a line for the first step, the last, every `LINE_SECONDS` between and every
    evaluation.

    Args:
        total_steps: the step at which the phase ends.
        start_step: the step at which it starts (a resumed run's checkpoint).
        description: the phase's name.
        kind: of the rows that `update` gets.
        console: the rich console; one on standard output by default.
        enabled: False shows nothing (every process but the first of a pod).
    """

    def __init__(
        self,
        total_steps: int,
        *,
        start_step: int = 0,
        description: str = "train",
        kind: str = "train",
        console=None,
        enabled: bool = True,
    ):
        from rich import progress

        self.step = int(start_step)
        self._total = int(total_steps)
        self._description = description
        self._kind = kind
        self._console = console if enabled and console else make_console(quiet=not enabled)
        self._enabled = enabled
        self._live = enabled and self._console.is_interactive
        self._readings = ""
        self._printed_step: int | None = None  # of the last line
        self._printed_time = 0.0
        # Without a terminal it only estimates the time left.
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", style="bold", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[text]}", markup=False),
            progress.TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
            get_time=time.monotonic,
            speed_estimate_period=3600.0,
        )
        self._task = self._bar.add_task(
            description, total=self._total, completed=self.step, text=""
        )

    def __enter__(self) -> "TrainingProgress":
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._live:
            self._bar.stop()
        elif self._printed_step not in (None, self.step):
            self._print_step()

    def update(self, step: int, scalars: Mapping[str, object] | None = None) -> None:
        """Shows a finished step, counted from the start of the run, and some of its scalars."""
        if not self._enabled:
            return
        self.step = int(step)
        self._readings = _readings(self._kind, scalars or {})
        self._redraw(self._readings)
        late = time.monotonic() - self._printed_time >= LINE_SECONDS
        if not self._live and (late or self._printed_step is None or self.step >= self._total):
            self._print_step()

    def evaluated(self, step: int, scalars: Mapping[str, object]) -> None:
        """Shows an evaluation of the policy after `step` updates on a line of its own."""
        self._redraw(self._readings)
        self._print_line("eval", step, _readings("eval", scalars))

    def phase(self, text: str) -> None:
        """Shows the work between updates; off a terminal, only before the first update."""
        self._redraw(text or self._readings)
        if not self._live and text and self._printed_step is None:
            self._print_line(self._description, self.step, text)

    def message(self, text: str) -> None:
        """Prints a line that stays, above the bar if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        # A pipe is block-buffered: without this a CI log shows nothing for minutes.
        self._console.file.flush()

    def _print_step(self) -> None:
        self._printed_step = self.step
        self._printed_time = time.monotonic()
        left = self._bar.tasks[0].time_remaining
        remaining = f"  left {compact_duration(left)}" if left else ""
        self._print_line(self._description, self.step, self._readings + remaining)

    def _print_line(self, name: str, step: int, text: str) -> None:
        """Prints a line: `train  120/400   30%  reward 0.412  accuracy 83.2%  left 0:01:32`."""
        share = step / self._total if self._total else 1.0
        place = f"{step:>{len(str(self._total))}}/{self._total}"
        self.message(f"{name:<{len(self._description)}} {place} {share:>4.0%}  {text}".rstrip())

    def _redraw(self, text: str) -> None:
        self._bar.update(self._task, completed=self.step, text=text)


def _readings(kind: str, scalars: Mapping[str, object]) -> str:
    return "  ".join(
        f"{name.replace('_', ' ')} {written(kind, name, float(scalars[name]))}"
        for name in READINGS[kind]
        if name in scalars
    )


def print_header(summary: Mapping[str, object], title: str = "grre_jax", console=None) -> None:
    """Prints a run's header.

    Args:
        summary: field to value; None is left out.
        title: the heading.
        console: the rich console; one on standard output by default.
    """
    console = console if console is not None else make_console()
    rows = [[name, str(value)] for name, value in summary.items() if value is not None]
    console.print(title, style="bold")
    console.print(make_table([], rows))


def compact_duration(seconds: float) -> str:
    """Returns hours, minutes and seconds: 0:01:32, 2:05:00, 3 days, 4:00:00."""
    return str(timedelta(seconds=round(seconds)))
