"""A run in a dozen numbers, as a table on the console and as rows of `summary.json`."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from grre_jax.reporting.metrics import (
    COMPONENT,
    Metrics,
    Row,
    accuracy_known,
    component_names,
    json_safe,
    not_finite_rows,
    series,
    staleness_histogram,
)
from grre_jax.reporting.outcome import WORSE, Evaluation, Outcome, outcome, sentences
from grre_jax.reporting.panels import run_colours
from grre_jax.reporting.progress import compact_duration, compact_number, speaks_unicode

# Scalars of a train row that are seconds of work.
SECONDS = "seconds_"
SPARKS, SPARK_WIDTH = "▁▂▃▄▅▆▇█", 16


@dataclass(frozen=True)
class Component:
    """A component of the reward.

    Attributes:
        name: as the verdicts name it.
        first, last: means over the first and the last tenth of the training steps; None if no row
            has it.
        evaluation: mean at the last evaluation; None if it has none.
    """

    name: str
    first: float | None
    last: float | None
    evaluation: float | None


@dataclass(frozen=True)
class RunSummary:
    """The figures of one run. None if the run did not record what is needed.

    Attributes:
        name: the run's name in plots and tables.
        folder: of the run.
        steps: updates made.
        accuracy_first, accuracy_last, accuracy_best: evaluations; the best is the earliest of the
            highest. None if any evaluation does not know what is correct.
        greedy_accuracy_first, greedy_accuracy_last, greedy_accuracy_best: of the greedy
            completions, in the same way.
        accuracy_first_quarter: mean of the accuracy curve, linear between evaluations, over the
            first quarter of its steps. It separates early learning; unlike "steps to a threshold"
            it is not fooled by a lucky spike.
        largest_drawdown: the most that accuracy was ever below an earlier evaluation, in [0, 1]; a
            collapse that recovers shows too.
        evaluation_reward_first, evaluation_reward_last, evaluation_reward_best: mean reward of
            evaluations, in the same way.
        reward_first, reward_last: mean training reward over the first and the last tenth of the
            steps.
        kl_to_start: at the last evaluation.
        entropy, clip_fraction, response_length: mean over the last tenth of the steps, except the
            clip fraction: over all.
        tokens: tokens trained on, the sum of the rows' `tokens`.
        wall_seconds: seconds the run was running, pauses between a kill and a resume left out.
        not_finite_steps: training steps with a NaN or an infinity among their scalars.
        accuracy_curve: (step, accuracy) of every evaluation.
        staleness: (age in updates, groups trained on that a policy of that age had sampled); empty
            if the run did not record it.
        discarded: groups that were too old for their step; None if that cannot be.
        failures: completions of training without a verdict; None without any.
        components: of the reward.
        seconds: (work, seconds) of the steps, the most first: sampling, training and others; empty
            if the run did not record them.
        outcome: whether the run got better or worse; None without two evaluations that have
            intervals.
    """

    name: str
    folder: str
    steps: int
    accuracy_first: Evaluation | None
    accuracy_last: Evaluation | None
    accuracy_best: Evaluation | None
    accuracy_first_quarter: float | None
    largest_drawdown: float | None
    reward_first: float | None
    reward_last: float | None
    kl_to_start: float | None
    entropy: float | None
    clip_fraction: float | None
    response_length: float | None
    tokens: int | None
    wall_seconds: float | None
    not_finite_steps: int
    accuracy_curve: tuple[tuple[int, float], ...]
    staleness: tuple[tuple[int, int], ...] = ()
    discarded: int | None = None
    failures: int | None = None
    evaluation_reward_first: Evaluation | None = None
    evaluation_reward_last: Evaluation | None = None
    evaluation_reward_best: Evaluation | None = None
    components: tuple[Component, ...] = ()
    outcome: Outcome | None = None
    greedy_accuracy_first: Evaluation | None = None
    greedy_accuracy_last: Evaluation | None = None
    greedy_accuracy_best: Evaluation | None = None
    seconds: tuple[tuple[str, float], ...] = ()

    def as_json(self) -> dict[str, object]:
        """Returns the summary as `json.dumps` writes it as valid JSON: NaN is null."""
        return json_safe(asdict(self))


def summarise(name: str, folder: str, metrics: Metrics) -> RunSummary:
    """Returns the summary of a run.

    Args:
        name: the name to show.
        folder: the run's folder.
        metrics: as `read_metrics` gives it.
    """
    train, held_out = metrics.get("train", []), metrics.get("eval", [])
    evaluations, greedy = (
        _evaluations(metrics, name) if accuracy_known(metrics, name) else []
        for name in ("accuracy", "greedy_accuracy")
    )
    rewards = _evaluations(metrics, "reward")
    measures = {"accuracy": evaluations, "greedy_accuracy": greedy, "evaluation_reward": rewards}
    ends = {
        f"{measure}_{which}": evaluation
        for measure, found in measures.items()
        for which, evaluation in zip(("first", "last", "best"), _ends(found), strict=True)
    }
    judged = ("accuracy", evaluations) if evaluations else ("reward", rewards)
    return RunSummary(
        name=name,
        folder=folder,
        steps=max((row["step"] for row in train), default=0),
        **ends,
        accuracy_first_quarter=_first_quarter_mean(evaluations),
        largest_drawdown=largest_drawdown([evaluation.value for evaluation in evaluations]),
        reward_first=tenth(train, "reward", last=False),
        reward_last=tenth(train, "reward"),
        kl_to_start=_last(held_out, "kl_to_start"),
        entropy=tenth(train, "entropy"),
        clip_fraction=_mean(series(train, "clip_fraction")[1]),
        response_length=tenth(train, "response_length"),
        tokens=_total(train, "tokens"),
        wall_seconds=_wall_seconds(metrics),
        seconds=_split(train),
        not_finite_steps=not_finite_rows(train),
        accuracy_curve=tuple((evaluation.step, evaluation.value) for evaluation in evaluations),
        staleness=tuple(staleness_histogram(metrics).items()),
        discarded=_total(train, "stale_groups_discarded"),
        failures=_total(train, "verify_failures"),
        components=tuple(
            Component(
                key.removeprefix(COMPONENT),
                tenth(train, key, last=False),
                tenth(train, key),
                _last(held_out, key),
            )
            for key in component_names(metrics)
        ),
        outcome=outcome(*judged, metrics, greedy),
    )


def largest_drawdown(values: Sequence[float]) -> float | None:
    """Returns the most that a value is below an earlier one; None without finite values."""
    finite = np.array([value for value in values if math.isfinite(value)])
    return float(np.max(np.maximum.accumulate(finite) - finite)) if finite.size else None


def sparkline(values: Sequence[float], bounds: tuple[float, float] | None = None) -> str:
    """Returns values, evenly resampled to at most SPARK_WIDTH, as a row of blocks between the
    bounds (their minimum and maximum by default).
    """
    picked = [value for value in values if math.isfinite(value)]
    if not picked:
        return ""
    if len(picked) > SPARK_WIDTH:
        last = len(picked) - 1
        picked = [picked[round(i * last / (SPARK_WIDTH - 1))] for i in range(SPARK_WIDTH)]
    low, high = bounds or (min(picked), max(picked))
    shares = [min(max((value - low) / (high - low or 1.0), 0.0), 1.0) for value in picked]
    return "".join(SPARKS[round(share * (len(SPARKS) - 1))] for share in shares)


def shortened(name: str, longest: int, gap: str = "…") -> str:
    """Returns the name with its middle left out if it is longer than `longest`."""
    kept = longest - len(gap)
    return name if len(name) <= longest else name[: kept // 2] + gap + name[kept // 2 - kept :]


def print_summaries(summaries: Sequence[RunSummary], console) -> None:
    """Prints the runs side by side, as many at a time as the console is wide, each marked with its
    colour in the plots.

    Args:
        summaries: the runs, in order.
        console: the rich console.
    """
    from rich.measure import Measurement

    endless = console.options.update(max_width=10_000)
    rest, colours = list(summaries), run_colours([summary.name for summary in summaries])
    while rest:
        for count in range(len(rest), 0, -1):
            table = _table(rest[:count], console, colours)
            if Measurement.get(console, endless, table).maximum <= console.width or count == 1:
                break
        console.print(table)
        rest = rest[count:]
    for sentence in outcomes(summaries):
        console.print(sentence, markup=False, highlight=False)


def outcomes(summaries: Sequence[RunSummary]) -> list[str]:
    """Returns sentences on whether each run got better or worse, each with its name."""
    return [
        f"{summary.name}: {sentence}" if len(summaries) > 1 else sentence
        for summary in summaries
        if summary.outcome is not None
        for sentence in sentences(summary.outcome)
    ]


def _table(summaries: Sequence[RunSummary], console, colours: Mapping[str, str]):
    """Returns a `rich.table.Table` of a row per number."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    unicode = speaks_unicode(console)
    frame = box.SIMPLE_HEAD if unicode else box.ASCII
    table = Table(box=frame, header_style="bold", pad_edge=not unicode)
    table.add_column("", style="dim", no_wrap=True)
    for summary in summaries:
        dot = Text("● " if unicode else "", style=colours[summary.name])
        name = shortened(summary.name, 30, "…" if unicode else "..")
        table.add_column(dot + Text(name), justify="right")
    for label, cells in table_rows(summaries, unicode):
        if any(cells):
            nothing = "–" if unicode else "-"
            table.add_row(Text(label), *(Text.from_markup(cell or nothing) for cell in cells))
    return table


Cell = Callable[[RunSummary], str]


def table_rows(summaries: Sequence[RunSummary], unicode: bool) -> list[tuple[str, list[str]]]:
    """Returns label and a cell per run, in rich's markup; empty if the run has no such number."""
    dash = "–" if unicode else "-"
    accuracies = [value for summary in summaries for _, value in summary.accuracy_curve]
    bounds = (min(accuracies), max(accuracies)) if accuracies else None  # one scale for all runs

    def course(summary: RunSummary) -> str:
        return sparkline([value for _, value in summary.accuracy_curve], bounds=bounds)

    def share(field: str, **how: bool) -> Cell:
        return _number(field, lambda one: _evaluated(one, "{:.1%}".format, dash, **how))

    rows: dict[str, Cell] = {
        "steps": lambda summary: f"{summary.steps:,}",
        "accuracy, course": course if unicode else lambda _: "",
        "accuracy, first": share("accuracy_first"),
        "accuracy, last": share("accuracy_last", bold=True),
        "accuracy, best": share("accuracy_best", at_step=True),
        "greedy accuracy, first": share("greedy_accuracy_first"),
        "greedy accuracy, last": share("greedy_accuracy_last"),
        "accuracy, mean of the first quarter": _number("accuracy_first_quarter", "{:.1%}".format),
        "accuracy, largest drawdown": _number(
            "largest_drawdown", lambda value: f"{100 * value:.1f} points"
        ),
        "end against start": _outcome_cell,
        "held-out reward, first": lambda summary: _reward_cell(summary, "first"),
        "held-out reward, last": lambda summary: _reward_cell(summary, "last"),
        "held-out reward, best": lambda summary: _reward_cell(summary, "best"),
        "reward, first tenth": _number("reward_first", "{:.3f}".format),
        "reward, last tenth": _number("reward_last", "{:.3f}".format),
        **_component_rows(summaries),
        "KL to the start (nats/token)": _number("kl_to_start", "{:.3g}".format),
        "entropy (nats/token)": _number("entropy", "{:.3g}".format),
        "clipped tokens": _number("clip_fraction", "{:.2%}".format),
        "response length (tokens)": _number("response_length", "{:.1f}".format),
        "staleness (updates)": _number("staleness", lambda ages: _ages(ages, dash)),
        "groups too old, discarded": _number("discarded", "{:,}".format),
        "completions without a verdict": _number("failures", "{:,}".format),
        "tokens trained on": _number("tokens", compact_number),
        "time": _number("wall_seconds", compact_duration),
        "time of the steps": lambda summary: ", ".join(
            f"{name} {value / (sum(dict(summary.seconds).values()) or 1):.0%}"
            for name, value in summary.seconds
        ),
        "steps with NaN or infinity": lambda summary: (
            f"[bold red]{summary.not_finite_steps}[/]" if summary.not_finite_steps else ""
        ),
    }
    return [(label, [cell(summary) for summary in summaries]) for label, cell in rows.items()]


def _number(field: str, form: Callable[[float], str]) -> Cell:
    return lambda summary: "" if (value := getattr(summary, field)) is None else form(value)


def _reward_cell(summary: RunSummary, which: str) -> str:
    """A mean reward with its interval; empty if it equals the accuracy (rewards 0 and 1)."""
    evaluation = getattr(summary, f"evaluation_reward_{which}")
    rewards, accuracies = (
        [getattr(summary, f"{measure}_{end}") for end in ("first", "last", "best")]
        for measure in ("evaluation_reward", "accuracy")
    )
    if evaluation is None or rewards == accuracies:
        return ""
    return _evaluated(evaluation, "{:.3f}".format, " to ", at_step=which == "best")


def _evaluated(
    found: Evaluation, form: Callable[[float], str], gap: str, bold=False, at_step=False
) -> str:
    """A value with its interval, whose bounds have no percent sign."""
    value, *bounds = map(form, (found.value, found.low, found.high))
    text = f"[bold]{value}[/]" if bold else value
    if math.isfinite(found.low) and math.isfinite(found.high):
        text += f" [dim]({gap.join(bound.removesuffix('%') for bound in bounds)})[/]"
    return text + (f" [dim]at {found.step:,}[/]" if at_step else "")


def _ages(histogram: Sequence[tuple[int, int]], dash: str) -> str:
    """The share of each age, or the mean and the range of more than four."""
    total = sum(count for _, count in histogram)
    if not total:
        return ""
    if len(histogram) <= 4:
        return ", ".join(f"{age}: {count / total:.0%}" for age, count in histogram)
    mean = sum(age * count for age, count in histogram) / total
    return f"{mean:.1f} ({histogram[0][0]}{dash}{histogram[-1][0]})"


def _outcome_cell(summary: RunSummary) -> str:
    change = summary.outcome.change if summary.outcome else ""
    return f"[bold red]{change}[/]" if change == WORSE else change


def _component_rows(summaries: Sequence[RunSummary]) -> dict[str, Cell]:
    """A row per component of the reward, in order of appearance."""

    def cell(name: str, summary: RunSummary) -> str:
        found = [one for one in summary.components if one.name == name]
        ends = [f"{one.first:.3f} to {one.last:.3f}" for one in found if one.last is not None]
        ends += [f"held-out {one.evaluation:.3f}" for one in found if one.evaluation is not None]
        return ", ".join(ends)

    names = dict.fromkeys(one.name for summary in summaries for one in summary.components)
    return {f"component {shortened(name, 40)}": functools.partial(cell, name) for name in names}


def _ends(evaluations: Sequence[Evaluation]) -> tuple[Evaluation | None, ...]:
    if not evaluations:
        return None, None, None
    best = max(evaluations, key=lambda evaluation: evaluation.value)
    return evaluations[0], evaluations[-1], best


def _evaluations(metrics: Metrics, name: str) -> list[Evaluation]:
    values, low, high = (
        dict(zip(*series(metrics.get("eval", []), key), strict=True))
        for key in (name, f"{name}_low", f"{name}_high")
    )
    return [
        Evaluation(int(step), float(value), *(float(b.get(step, math.nan)) for b in (low, high)))
        for step, value in values.items()
        if math.isfinite(value)
    ]


def _first_quarter_mean(evaluations: Sequence[Evaluation]) -> float | None:
    if len(evaluations) < 2:
        return evaluations[0].value if evaluations else None
    steps = np.array([evaluation.step for evaluation in evaluations], dtype=np.float64)
    values = np.array([evaluation.value for evaluation in evaluations])
    end = steps[0] + (steps[-1] - steps[0]) / 4
    grid = np.append(steps[steps < end], end)
    return float(np.trapezoid(np.interp(grid, steps, values), grid) / (end - steps[0]))


def tenth(rows: list[Row], name: str, last: bool = True) -> float | None:
    """Returns the mean of a scalar's finite values over the last, or first, tenth of its rows; None
    without one.
    """
    _, values = series(rows, name)
    count = max(1, len(values) // 10)
    return _mean(values[-count:] if last else values[:count])


def _last(rows: list[Row], name: str) -> float | None:
    values = series(rows, name)[1]
    return float(values[-1]) if len(values) else None


def _total(rows: list[Row], name: str) -> int | None:
    values = series(rows, name)[1]
    return int(sum(values)) if len(values) else None


def _mean(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def _split(rows: list[Row]) -> tuple[tuple[str, float], ...]:
    """Returns the seconds of the steps by work, the most first."""
    names = {name for row in rows for name in row if name.startswith(SECONDS)}
    sums = {name.removeprefix(SECONDS): float(sum(series(rows, name)[1])) for name in names}
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def _wall_seconds(metrics: Metrics) -> float | None:
    rows = [row for rows in metrics.values() for row in rows]
    if elapsed := [row["elapsed"] for row in rows if "elapsed" in row]:
        return max(elapsed)
    # Of a log that something else wrote, pauses count.
    times = [row["time"] for row in rows if "time" in row]
    return max(times) - min(times) if times else None
