"""The names in `metrics.jsonl`, from `metric_names.toml`."""

import re
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class MetricName:
    """One name, or a family of names.

    Attributes:
        name: the name; a part in angle brackets stands for any text: `component_<name>`.
        kinds: the kinds of rows that have it.
        unit, meaning: of the value, in one line.
        advice: what to do when it looks wrong; may be empty.
    """

    name: str
    kinds: list[str]
    unit: str
    meaning: str
    advice: str = ""

    def matches(self, kind: str, name: str) -> bool:
        """True if a scalar `name` in a row of this kind belongs to the entry."""
        pattern = re.escape(self.name).replace("<n>", r"\d+").replace("<range>", r"\d+_(\d+|up)")
        pattern = re.sub("<.*?>", ".+", pattern)
        return kind in self.kinds and re.fullmatch(pattern, name) is not None


def read_names(table: str) -> tuple[MetricName, ...]:
    """Returns a table of the file: "metrics", or the "row_fields" of every row."""
    text = resources.files(__package__).joinpath("metric_names.toml").read_text("utf-8")
    return tuple(MetricName(**entry) for entry in tomllib.loads(text)[table])


METRIC_NAMES = read_names("metrics")


def described(kind: str, name: str) -> MetricName | None:
    """Returns the entry of a scalar, an exact name before a family; None for an unknown name.

    Args:
        kind: the row's kind.
        name: the scalar's name.
    """
    entries = [entry for entry in METRIC_NAMES if entry.matches(kind, name)]
    return min(entries, key=lambda entry: "<" in entry.name, default=None)


def written(kind: str, name: str, value: float) -> str:
    """Returns a scalar's value as text: a share in percent, else four digits, or all of 1,000."""
    entry = described(kind, name)
    if entry and entry.unit.startswith("share"):
        return f"{value:.1%}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
