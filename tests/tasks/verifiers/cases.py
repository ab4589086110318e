"""The table of cases: its rows, and what a case's verifier returns."""

import csv
from pathlib import Path

from grre_jax import tasks
from grre_jax.tasks.judging import Failure, verdict_of

CASES = Path(__file__).parent / "cases.tsv"


def rows():
    """The rows of the table, dictionaries of texts by column."""
    with CASES.open(encoding="utf-8", newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True))


def returned(row, built):
    """What a row's verifier returns: "1", "0" or a kind of failure; `built` keeps the tasks."""
    name, _, number = row["truth"].partition("/")
    gym = row["kind"] == "reasoning_gym"
    key = name if gym else row["kind"]
    if key not in built:
        built[key] = tasks.build(row["kind"], **({"dataset": name} if gym else {}))
    task = built[key]
    question = tasks.Question("case", row["question"] or "asked", row["truth"])
    question = task._question(int(number)) if gym else question
    completion = row["completion"].replace("⏎", "\n").replace("␀", "\0")
    verdict = verdict_of(task, question, completion.replace("{answer}", question.answer))
    return verdict.kind if isinstance(verdict, Failure) else str(int(verdict.reward == 1))
