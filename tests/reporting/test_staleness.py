"""The histogram of ages, from a run's log to the table and the picture."""

import io

from rich.console import Console

from grre_jax.reporting.figures import draw_curves
from grre_jax.reporting.metrics import staleness_histogram
from grre_jax.reporting.summary import print_summaries, summarise, table_rows


def row(step, **scalars):
    return {"step": step, "kind": "train", "reward": 0.5, **scalars}


def test_counts_add_up_over_steps_and_a_step_taken_twice_counts_once():
    rows = [
        row(1, staleness_0=4),
        row(2, staleness_1=4),
        row(2, staleness_1=3, staleness_12=1),
        row(3, staleness=1.5),
    ]
    assert staleness_histogram({"train": rows}) == {0: 4, 1: 3, 12: 1}
    assert list(staleness_histogram({"train": rows})) == [0, 1, 12]
    assert staleness_histogram({"eval": [row(1)]}) == {}


def test_many_ages_are_their_mean_and_range():
    metrics = {"train": [row(1, **{f"staleness_{age}": 2 for age in range(20)})]}
    cells = dict(table_rows([summarise("run", "folder", metrics)], unicode=True))
    assert cells["staleness (updates)"] == ["9.5 (0–19)"]


def test_the_table_and_the_picture_tell_it(tmp_path):
    metrics = {
        "train": [
            row(1, staleness_0=4, stale_groups_discarded=0),
            row(2, staleness_1=4, stale_groups_discarded=3, verify_failures=2),
        ]
    }
    summary = summarise("run", "folder", metrics)
    assert summary.staleness == ((0, 4), (1, 4)) and summary.discarded == 3
    assert summary.failures == 2
    assert summary.as_json()["staleness"] == [[0, 4], [1, 4]]
    console = Console(file=io.StringIO(), width=100)
    print_summaries([summary], console)
    assert "0: 50%, 1: 50%" in console.file.getvalue()
    assert "groups too old, discarded" in console.file.getvalue()
    assert draw_curves({"run": metrics}, tmp_path)[-1].name == "staleness.png"


def test_a_run_that_did_not_record_it(tmp_path):
    metrics = {"train": [row(1), row(2)]}
    assert summarise("run", "folder", metrics).staleness == ()
    assert summarise("run", "folder", metrics).discarded is None
    assert summarise("run", "folder", metrics).failures is None
    console = Console(file=io.StringIO(), width=100)
    print_summaries([summarise("run", "folder", metrics)], console)
    assert "staleness" not in console.file.getvalue()
    assert "staleness.png" not in [path.name for path in draw_curves({"run": metrics}, tmp_path)]
