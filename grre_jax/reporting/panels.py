"""The panels of a report: their scalars and formats, and the colours of all pictures."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from grre_jax.reporting.metric_names import described
from grre_jax.reporting.metrics import COMPONENT, Metrics, accuracy_known, component_names

# Okabe & Ito's palette, told apart under every common colour blindness
# (https://jfly.uni-koeln.de/color/), without its yellow, which fades on white, and with the grey
# last. Beyond seven runs the colours come again with another dash.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6E6E6E")
DASHED = "--"  # a panel's second scalar, in the run's colour
DASHES = ("-", ":", "-.")
# As in the style file.
INK, MUTED, GRID, EDGE = "#1F2328", "#6B7280", "#E6E8EB", "#9AA1AB"
STYLE = str(Path(__file__).with_name("template") / "figures.mplstyle")


@dataclass(frozen=True)
class Panel:
    """One scalar's picture.

    Attributes:
        name: the picture's file name, without the ending.
        title, note: what it shows; the note holds the unit.
        kind: which rows.
        form: format of the value at a curve's end; "" for three digits. A format that ends in "%"
            puts the axis in percent of 1.
        from_zero: whether the axis always starts at 0.
        interval: whether the rows have its bounds too, as `<key>_low` and `<key>_high`.
        smoothed: whether many training steps get a smooth line; not what the regime sets.
        key: which of the rows' scalars; the name by default.
        dashed: another of them, drawn dashed where a run has it; "" for none.
    """

    name: str
    title: str
    note: str
    kind: str
    form: str = ""
    from_zero: bool = False
    interval: bool = False
    smoothed: bool = True
    key: str = ""
    dashed: str = ""

    def __post_init__(self):
        object.__setattr__(self, "key", self.key or self.name)

    @property
    def percent(self) -> bool:
        """True if the axis is in percent of 1."""
        return self.form.endswith("%")

    def written(self, value: float) -> str:
        """Returns the value at a curve's end as text of at most eight characters."""
        short = 1e-3 <= abs(value) < 1000 or value == 0
        return f"{value:{self.form or ('#.3g' if short else '.2g')}}".rstrip(".")


PANELS = (
    Panel("reward", "Reward", "training batches, mean", "train", ".2f"),
    Panel(
        "accuracy",
        "Accuracy",
        "held-out; dashed: greedy",
        "eval",
        ".1%",
        interval=True,
        dashed="greedy_accuracy",
    ),
    Panel("kl_to_start", "KL to the start", "nats per token", "eval", from_zero=True),
    Panel("entropy", "Entropy", "nats per token", "train", from_zero=True),
    Panel("clip_fraction", "Clipped tokens", "share of training tokens", "train", ".1%", True),
    Panel("response_length", "Response length", "tokens", "train", ".1f"),
)

# In accuracy's place if no run knows what is correct.
EVALUATION_REWARD = Panel(
    "evaluation_reward",
    "Reward on held-out questions",
    "mean",
    "eval",
    ".2f",
    interval=True,
    key="reward",
)

# On the page beside `PANELS`, if a run recorded them.
MORE = (
    ("train", "effective_sample_size", "Effective sample size"),
    ("train", "staleness", "Staleness"),
    ("train", "kl_behavior_k3", "KL, behaviour to policy"),
    ("train", "accuracy", "Accuracy, training"),
    ("train", "zero_variance_groups", "Groups without a signal"),
    ("train", "grad_norm", "Gradient norm"),
    ("train", "loss", "Loss"),
    ("train", "verify_failures", "Completions without a verdict"),
    ("warm_start", "loss", "Loss, warm start"),
)


def page_panels(runs: Mapping[str, Metrics]) -> tuple[Panel, ...]:
    """Returns the overview's panels, the further ones and `MORE`, of which any run has data."""
    shown = (*overview_panels(runs.values()), *further_panels(runs.values()))
    shown += tuple(_panel(*more) for more in MORE)
    return tuple(panel for panel in shown if any(has_data(m, panel) for m in runs.values()))


def overview_panels(runs: Collection[Metrics]) -> tuple[Panel, ...]:
    """Returns `PANELS`, with the reward of evaluations for accuracy if no run has an accuracy."""
    rewarded = any(has_data(metrics, EVALUATION_REWARD) for metrics in runs)
    if not rewarded or any(map(accuracy_known, runs)):
        return PANELS
    return tuple(EVALUATION_REWARD if panel.name == "accuracy" else panel for panel in PANELS)


def further_panels(runs: Collection[Metrics]) -> tuple[Panel, ...]:
    """Returns the panels beside the overview: each component of the reward, and the reward of
    evaluations if it differs from the accuracy.
    """
    rows = [row for metrics in runs if accuracy_known(metrics) for row in metrics.get("eval", ())]
    shaped = any(row.get("reward", row.get("accuracy")) != row.get("accuracy") for row in rows)
    found = [EVALUATION_REWARD] * shaped
    for name in dict.fromkeys(name for metrics in runs for name in component_names(metrics)):
        trained = any(name in row for metrics in runs for row in metrics.get("train", ()))
        where = (
            ("training batches, mean", "train") if trained else ("held-out questions, mean", "eval")
        )
        title = f"Component {name.removeprefix(COMPONENT)}"
        found.append(Panel(quote(name, safe="")[:200], title, *where, key=name))
    return tuple(found)


def has_data(metrics: Metrics, panel: Panel) -> bool:
    """True if any row of the run has the panel's scalar."""
    return any(panel.key in row for row in metrics.get(panel.kind, ()))


def run_colours(names: Sequence[str]) -> dict[str, str]:
    """Returns each run's colour, "#rrggbb", in every picture and table."""
    return {name: run_style(index)["color"] for index, name in enumerate(names)}


def run_style(index: int) -> dict[str, str]:
    """Returns matplotlib's colour and linestyle of run `index`."""
    again, place = divmod(index, len(PALETTE))
    return {"color": PALETTE[place], "linestyle": DASHES[again % len(DASHES)]}


def _panel(kind: str, key: str, title: str) -> Panel:
    entry = described(kind, key)
    unit = entry.unit if entry else ""
    share = unit.startswith("share of")
    form, smoothed = ".1%" if share else "", key != "staleness"
    return Panel(f"{kind}_{key}", title, unit, kind, form, share, smoothed=smoothed, key=key)
