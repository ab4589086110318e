"""Progress of a run on the console: rich's bar on a terminal, lines in a file or a notebook."""

import time
from collections.abc import Mapping
from datetime import timedelta

from grre_jax.console import make_table
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
        console: the rich console.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        start_step: int = 0,
        description: str = "train",
        kind: str = "train",
        console,
    ):
        from rich import progress

        self._total = total_steps
        self._description = description
        self._kind = kind
        self._console = console
        self._live = self._console.is_interactive and not self._console.quiet
        self._readings = ""
        self._printed_at: float | None = None  # the last line of a step
        # Without a terminal it only estimates the time left.
        self._bar = progress.Progress(
            "{task.description}",
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            "{task.fields[text]}",
            progress.TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
            speed_estimate_period=3600.0,
        )
        self._task = self._bar.add_task(
            description, total=self._total, completed=start_step, text=""
        )

    def __enter__(self) -> "TrainingProgress":
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._live:
            self._bar.stop()

    def update(self, step: int, scalars: Mapping[str, object] | None = None) -> None:
        """Shows a finished step, counted from the start of the run, and some of its scalars."""
        self._readings = _readings(self._kind, scalars or {})
        self._bar.update(self._task, completed=step, text=self._readings)
        now = time.monotonic()
        late = self._printed_at is None or now - self._printed_at >= LINE_SECONDS
        if not self._live and (late or step >= self._total):
            self._printed_at = now
            seconds = self._bar.tasks[0].time_remaining
            remaining = f"  left {compact_duration(seconds)}" if seconds else ""
            self._print(f"{self._description} {step}/{self._total}  {self._readings}{remaining}")

    def evaluated(self, step: int, scalars: Mapping[str, object]) -> None:
        """Shows an evaluation of the policy after `step` updates on a line of its own."""
        self._bar.update(self._task, text=self._readings)
        self._print(f"eval {step}/{self._total}  {_readings('eval', scalars)}")

    def phase(self, text: str) -> None:
        """Shows the work between updates; off a terminal, only before the first update."""
        self._bar.update(self._task, text=text or self._readings)
        if not self._live and text and self._printed_at is None:
            self._print(f"{self._description}: {text}")

    def _print(self, text: str) -> None:
        """Prints a line that stays, above the bar if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        # A pipe is block-buffered: without this a CI log shows nothing for minutes.
        self._console.file.flush()


def _readings(kind: str, scalars: Mapping[str, object]) -> str:
    return "  ".join(
        f"{name.replace('_', ' ')} {written(kind, name, float(scalars[name]))}"
        for name in READINGS[kind]
        if name in scalars
    )


def print_header(summary: Mapping[str, object], console, title: str = "grre_jax") -> None:
    """Prints a run's header.

    Args:
        summary: field to value; None is left out.
        console: the rich console.
        title: the heading.
    """
    rows = [[name, str(value)] for name, value in summary.items() if value is not None]
    console.print(title, style="bold")
    console.print(make_table([], rows))


def compact_duration(seconds: float) -> str:
    """Returns hours, minutes and seconds: 0:01:32, 2:05:00, 3 days, 4:00:00."""
    return str(timedelta(seconds=round(seconds)))
