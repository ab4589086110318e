"""Progress of a run on the console: a live bar on a terminal, lines anywhere else."""

import importlib.util
import itertools
import time
from collections.abc import Callable, Mapping

from grre_jax.console import make_console

Form = Callable[[float], str]


def _rate(value: float) -> str:
    return f"{compact_number(value)} tok/s"


# The scalars shown, in order, by the kind of their row, and the form of each.
READINGS: dict[str, dict[str, Form]] = {
    "train": {
        "reward": "reward {:.3f}".format,
        "accuracy": "acc {:.1%}".format,
        "clip_fraction": "clip {:.1%}".format,
        "tokens_per_second": _rate,
        "seconds_sampling": "sampling {:.2g}s".format,
        "seconds_training": "training {:.2g}s".format,
    },
    "eval": {
        "accuracy": "acc {:.1%}".format,
        "greedy_accuracy": "greedy {:.1%}".format,
        "reward": "reward {:.3f}".format,
        "kl_to_start": "kl {:.3g}".format,
        "response_length": "length {:.1f}".format,
    },
    "warm_start": {
        "loss": "loss {:.4f}".format,
        "grad_norm": "grad norm {:.3g}".format,
        "entropy": "entropy {:.3f}".format,
        "tokens_per_second": _rate,
    },
}

ACCURACIES = {"accuracy": "eval acc {:.1%}".format, "greedy_accuracy": "greedy {:.1%}".format}

MOST_SECONDS = 300.0  # off a terminal, between two lines; a line may wait for the next update
LINES = 10  # off a terminal, lines of a phase that are evenly spread over its steps
PACE_SECONDS = 3600.0  # over which the time left is estimated


class TrainingProgress:
    """Progress through the steps of one phase; a context manager.

    On a terminal: rich's bar with step, readings, accuracies of the last evaluation and time left.
    Elsewhere (a CI log, a pipe, a notebook): about ten lines, at the first step, the last and
    evenly between, at least one every `MOST_SECONDS`, and one for every evaluation.
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
        """Draws nothing until entered.

        Args:
            total_steps: the step at which the phase ends.
            start_step: the step at which it starts (a resumed run's checkpoint).
            description: the phase's name, at the start of the bar.
            kind: of the rows that `update` gets: which scalars are shown, see `READINGS`.
            console: the rich console; one on standard output by default.
            enabled: False shows nothing at all (every process but the first of a pod).
        """
        self.step = int(start_step)
        self._total = int(total_steps)
        self._description = description
        self._forms = READINGS[kind]
        self._every = max(1, -(-(self._total - self.step) // LINES))
        self._console = console if enabled and console else make_console(quiet=not enabled)
        self._enabled = enabled
        self._live = enabled and is_live(self._console)
        self._readings = ""
        self._accuracy = ""
        self._printed_step: int | None = None  # of the last line
        self._printed_time = 0.0
        self._bar = _make_bar(self._console, self._live)
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
        """Shows a finished step.

        Args:
            step: counted from the start of the run (not of this process).
            scalars: of this step; those that are not shown are ignored.
        """
        if not self._enabled:
            return
        self.step = int(step)
        self._readings = _readings(self._forms, scalars or {})
        self._redraw(self._accuracy + self._readings)
        if not self._live and self._is_due():
            self._print_step()

    def evaluated(self, step: int, scalars: Mapping[str, object]) -> None:
        """Shows an evaluation: a line of its own off a terminal, accuracies in the bar on one.

        Args:
            step: updates made by the policy that was evaluated.
            scalars: of the evaluation's row.
        """
        if not self._enabled:
            return
        shown = _readings(ACCURACIES, scalars)
        self._accuracy = f"{shown}  " if shown else ""
        self._redraw(self._accuracy + self._readings)
        if not self._live:
            name = f"{'eval':<{len(self._description)}}"
            self._print_line(name, step, _readings(READINGS["eval"], scalars))

    def phase(self, text: str) -> None:
        """Shows the work between updates ("compiling", "evaluating"); the next update clears it.

        Off a terminal only the phases before the first update are printed: they are few, and take
        long if programs are compiled.
        """
        self._redraw(text or self._accuracy + self._readings)
        if not self._live and text and self._printed_step is None:
            self._print_line(self._description, self.step, text)

    def message(self, text: str) -> None:
        """Prints a line that stays, above the bar if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """Returns the seconds to the end at the pace of the last hour; None without an update."""
        return self._bar.tasks[0].time_remaining

    def _is_due(self) -> bool:
        if self._printed_step is None or self.step >= self._total:
            return True
        late = time.monotonic() - self._printed_time >= MOST_SECONDS
        return late or self.step // self._every > self._printed_step // self._every

    def _print_step(self) -> None:
        self._printed_step = self.step
        self._printed_time = time.monotonic()
        left = self.seconds_left()
        remaining = f"  left {compact_duration(left)}" if left else ""
        self._print_line(self._description, self.step, self._readings + remaining)

    def _print_line(self, name: str, step: int, text: str) -> None:
        """Prints a line: `train  120/400   30%  reward 0.412  acc 83.2%  left 1m32s`."""
        share = step / self._total if self._total else 1.0
        place = f"{step:>{len(str(self._total))}}/{self._total}"
        self.message(f"{name} {place} {share:>4.0%}  {text}".rstrip())
        # A pipe is block-buffered: without this a CI log shows nothing for minutes.
        self._console.file.flush()

    def _redraw(self, text: str) -> None:
        self._bar.update(self._task, completed=self.step, text=text)


def _readings(forms: Mapping[str, Form], scalars: Mapping[str, object]) -> str:
    return "  ".join(form(float(scalars[name])) for name, form in forms.items() if name in scalars)


def _make_bar(console, live: bool):
    """Rich's bar; without a live terminal it only keeps the pace."""
    from rich import progress
    from rich.table import Column

    class Readings(progress.TextColumn):
        """One line, cut on a narrow terminal."""

        def render(self, task):
            text = super().render(task)
            text.no_wrap = True
            text.overflow = "ellipsis"
            return text

    return progress.Progress(
        progress.TextColumn("{task.description}", style="bold", markup=False),
        progress.BarColumn(None, table_column=Column(ratio=1)),
        progress.MofNCompleteColumn(),
        Readings("{task.fields[text]}", markup=False, table_column=Column()),
        progress.TimeRemainingColumn(),
        console=console,
        expand=True,
        disable=not live,
        get_time=time.monotonic,
        speed_estimate_period=PACE_SECONDS,
    )


def print_header(summary: Mapping[str, object], title: str = "grre_jax", console=None) -> None:
    """Prints a run's header, once, before the bar.

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
            grid.add_row(field, Text(str(value)))
    console.print(Text(title, style="bold"))
    console.print(grid)
    console.print()


def is_live(console) -> bool:
    """True if the console can redraw in place: a terminal that is not dumb, or a notebook that has
    ipywidgets.
    """
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal and not console.is_dumb_terminal


def compact_number(value: float) -> str:
    """Returns three digits and a suffix: 950, 12.3k, 4.56M, 1.2B."""
    for scale, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}" if value == value else "nan"


def compact_duration(seconds: float) -> str:
    """Returns the two largest units: 8s, 1m32s, 2h05m, 3d04h."""
    whole = int(round(seconds))
    units = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
    for (size, unit), (below, smaller) in itertools.pairwise(units):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // below:02d}{smaller}"
    return f"{whole}s"
