"""A run in a dozen numbers, as a table on the console and as rows of `summary.json`."""

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
from grre_jax.reporting.outcome import Evaluation, Outcome, outcome, sentences
from grre_jax.reporting.panels import run_colours
from grre_jax.reporting.progress import compact_duration, compact_number

# Scalars of a train row that are seconds of work.
SECONDS = "seconds_"
LONGEST_NAME = 30  # letters of a run's name above its column
COLUMN_WIDTH = 30  # of a run in the table; the labels take as much


@dataclass(frozen=True)
class RunSummary:
    """The figures of one run; None or empty if the run did not record what is needed.

    Attributes:
        name: the run's name in plots and tables.
        folder: of the run.
        steps: updates made.
        accuracy, greedy_accuracy: of every evaluation, of sampled and of greedy completions; empty
            if any evaluation has no accuracy.
        evaluation_reward: mean reward of every evaluation.
        largest_drawdown: the most that accuracy was ever below an earlier evaluation, in [0, 1]; a
            collapse that recovers shows too.
        reward_first, reward_last: mean training reward over the first and the last tenth of the
            steps.
        components: of the reward, by name: the same two means, and the mean at the last evaluation.
        kl_to_start: at the last evaluation, nats per token.
        entropy, response_length: mean over the last tenth of the steps, in nats per token and
            tokens.
        clip_fraction: mean over all steps.
        tokens: tokens trained on.
        wall_seconds: seconds the run was running, without pauses between a kill and a resume.
        seconds: of the steps by work (sampling, training, others), the most first.
        staleness: groups trained on by the age in updates of the policy that sampled them.
        verify_failures: completions of training without a verdict.
        not_finite_steps: training steps with a NaN or an infinity among their scalars.
        outcome: whether the run got better or worse; None without two evaluations that have
            intervals.
    """

    name: str
    folder: str
    steps: int
    accuracy: tuple[Evaluation, ...]
    greedy_accuracy: tuple[Evaluation, ...]
    evaluation_reward: tuple[Evaluation, ...]
    largest_drawdown: float | None
    reward_first: float | None
    reward_last: float | None
    components: Mapping[str, tuple[float | None, float | None, float | None]]
    kl_to_start: float | None
    entropy: float | None
    clip_fraction: float | None
    response_length: float | None
    tokens: int | None
    wall_seconds: float | None
    seconds: Mapping[str, float]
    staleness: Mapping[int, int]
    verify_failures: int | None
    not_finite_steps: int
    outcome: Outcome | None

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
    train = metrics.get("train", [])
    held_out = metrics.get("eval", [])
    measures = {
        measure: _evaluations(held_out, measure) if accuracy_known(metrics, measure) else ()
        for measure in ("accuracy", "greedy_accuracy")
    }
    accuracy = measures["accuracy"]
    rewards = _evaluations(held_out, "reward")
    judged = ("accuracy", accuracy) if accuracy else ("reward", rewards)
    return RunSummary(
        name=name,
        folder=folder,
        steps=max((row["step"] for row in train), default=0),
        **measures,
        evaluation_reward=rewards,
        largest_drawdown=largest_drawdown([evaluation.value for evaluation in accuracy]),
        reward_first=tenth(train, "reward", last=False),
        reward_last=tenth(train, "reward"),
        components={
            key.removeprefix(COMPONENT): (
                tenth(train, key, last=False),
                tenth(train, key),
                _last(held_out, key),
            )
            for key in component_names(metrics)
        },
        kl_to_start=_last(held_out, "kl_to_start"),
        entropy=tenth(train, "entropy"),
        clip_fraction=_mean(series(train, "clip_fraction")[1]),
        response_length=tenth(train, "response_length"),
        tokens=_total(train, "tokens"),
        wall_seconds=max(
            (row.get("elapsed", 0.0) for rows in metrics.values() for row in rows), default=0
        ),
        seconds=_seconds(train),
        staleness=staleness_histogram(metrics),
        verify_failures=_total(train, "verify_failures"),
        not_finite_steps=not_finite_rows(train),
        outcome=outcome(*judged, measures["greedy_accuracy"]),
    )


def largest_drawdown(values: Sequence[float]) -> float | None:
    """Returns the most that a value is below an earlier one; None without values."""
    if not values:
        return None
    return float(np.max(np.maximum.accumulate(values) - np.asarray(values)))


def shortened(name: str, longest: int) -> str:
    """Returns the name with its middle left out if it is longer than `longest`."""
    start = (longest - 1) // 2
    end = longest - 1 - start
    return name if len(name) <= longest else f"{name[:start]}…{name[-end:]}"


def print_summaries(summaries: Sequence[RunSummary], console) -> None:
    """Prints the runs side by side, as many at a time as the console is wide, each marked with its
    colour in the plots, and the sentences of `outcomes`.

    Args:
        summaries: the runs, in order.
        console: the rich console.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    colours = run_colours([summary.name for summary in summaries])
    columns = max(1, console.width // COLUMN_WIDTH - 1)
    for start in range(0, len(summaries), columns):
        shown = summaries[start : start + columns]
        table = Table("", box=box.SIMPLE_HEAD)
        for summary in shown:
            name = shortened(summary.name, LONGEST_NAME)
            heading = Text.assemble(("● ", colours[summary.name]), name)
            table.add_column(heading, justify="right", overflow="fold")
        for label, cells in table_rows(shown):
            table.add_row(label, *cells)
        console.print(table)
    for sentence in outcomes(summaries):
        console.print(sentence)


def outcomes(summaries: Sequence[RunSummary]) -> list[str]:
    """Returns sentences on whether each run got better or worse, each with its name."""
    return [
        f"{summary.name}: {sentence}" if len(summaries) > 1 else sentence
        for summary in summaries
        if summary.outcome is not None
        for sentence in sentences(summary.outcome)
    ]


def table_rows(summaries: Sequence[RunSummary]) -> list[tuple[str, list[str]]]:
    """Returns label and a cell per run; "–" in a run that did not record the number."""
    columns = [_cells(summary) for summary in summaries]
    labels = dict.fromkeys(label for cells in columns for label in cells)
    rows = [(label, [cells.get(label) or "–" for cells in columns]) for label in labels]
    return [(label, cells) for label, cells in rows if set(cells) != {"–"}]


def _cells(summary: RunSummary) -> dict[str, str]:
    """Returns label to text; an empty one for what the run did not record."""
    accuracy = _evaluation_cells("accuracy", summary.accuracy, "{:.1%}".format)
    greedy = _evaluation_cells("greedy accuracy", summary.greedy_accuracy, "{:.1%}".format)
    rewards = _evaluation_cells("held-out reward", summary.evaluation_reward, "{:.3f}".format)
    if summary.evaluation_reward == summary.accuracy:  # rewards of 0 and 1
        rewards = dict.fromkeys(rewards, "")
    total = sum(summary.seconds.values()) or 1.0
    figures: tuple[tuple[str, float | None, Callable[[float], str]], ...] = (
        ("largest drawdown", summary.largest_drawdown, lambda value: f"{100 * value:.1f} points"),
        ("reward, first tenth", summary.reward_first, "{:.3f}".format),
        ("reward, last tenth", summary.reward_last, "{:.3f}".format),
        ("KL to the start (nats/token)", summary.kl_to_start, "{:.3g}".format),
        ("entropy (nats/token)", summary.entropy, "{:.3g}".format),
        ("clipped tokens", summary.clip_fraction, "{:.2%}".format),
        ("response length (tokens)", summary.response_length, "{:.1f}".format),
        ("completions without a verdict", summary.verify_failures, "{:,}".format),
        ("tokens trained on", summary.tokens, compact_number),
        ("time", summary.wall_seconds, compact_duration),
        ("steps with NaN or infinity", summary.not_finite_steps or None, "{:,}".format),
    )
    return {
        "steps": f"{summary.steps:,}",
        **accuracy,
        **greedy,
        "end against start": summary.outcome.change if summary.outcome else "",
        **rewards,
        **{label: "" if value is None else form(value) for label, value, form in figures},
        "time of the steps": ", ".join(
            f"{work} {seconds / total:.0%}" for work, seconds in summary.seconds.items()
        ),
        "staleness (updates)": _ages(summary.staleness),
        **{
            f"component {shortened(name, LONGEST_NAME)}": _component(*means)
            for name, means in summary.components.items()
        },
    }


def _evaluation_cells(
    label: str, evaluations: Sequence[Evaluation], form: Callable[[float], str]
) -> dict[str, str]:
    """The first, the last and the best value with their intervals."""
    cells = dict.fromkeys((f"{label}, first", f"{label}, last", f"{label}, best"), "")
    if not evaluations:
        return cells
    best = max(evaluations, key=lambda evaluation: evaluation.value)
    for name, one in zip(cells, (evaluations[0], evaluations[-1], best), strict=True):
        cells[name] = form(one.value)
        if math.isfinite(one.low) and math.isfinite(one.high):
            cells[name] += (
                f" ({form(one.low).removesuffix('%')}–{form(one.high).removesuffix('%')})"
            )
    cells[f"{label}, best"] += f" at {best.step:,}"
    return cells


def _component(first: float | None, last: float | None, evaluation: float | None) -> str:
    parts = [] if last is None else [f"{first:.3f} to {last:.3f}"]
    if evaluation is not None:
        parts.append(f"held-out {evaluation:.3f}")
    return ", ".join(parts)


def _ages(histogram: Mapping[int, int]) -> str:
    """The share of each age, or the mean and the range of more than four."""
    total = sum(histogram.values())
    if not total:
        return ""
    if len(histogram) <= 4:
        return ", ".join(f"{age}: {count / total:.0%}" for age, count in histogram.items())
    mean = sum(age * count for age, count in histogram.items()) / total
    return f"{mean:.1f} ({min(histogram)}–{max(histogram)})"


def _evaluations(rows: list[Row], name: str) -> tuple[Evaluation, ...]:
    steps, values = series(rows, name)
    bounds = {row["step"]: (row.get(f"{name}_low"), row.get(f"{name}_high")) for row in rows}
    return tuple(
        Evaluation(int(step), float(value), *(_number(bound) for bound in bounds[step]))
        for step, value in zip(steps, values, strict=True)
        if math.isfinite(value)
    )


def _number(value: object) -> float:
    return math.nan if value is None else float(value)


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


def _seconds(rows: list[Row]) -> dict[str, float]:
    names = {name for row in rows for name in row if name.startswith(SECONDS)}
    sums = {name.removeprefix(SECONDS): float(series(rows, name)[1].sum()) for name in names}
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
