"""Every name that is written to metrics.jsonl is in the table that the report and the
documentation explain it from.
"""

import pytest

from grre_jax import reporting
from grre_jax.reporting.metric_names import described
from grre_jax.reporting.metrics import HEADER


def test_the_rows_of_a_run_are_explained(tiny_run):
    written = {
        (kind, name)
        for kind, rows in reporting.read_metrics(tiny_run).items()
        for row in rows
        for name in row.keys() - set(HEADER)
    }
    assert {"train", "eval", "warm_start"} == {kind for kind, _ in written}
    assert [pair for pair in sorted(written) if described(*pair) is None] == []


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("staleness_3", "staleness_<n>"),
        ("staleness_2_3", "staleness_<range>"),
        ("reward_low", None),
    ],
)
def test_a_name_finds_its_entry(name, entry):
    found = described("train", name)
    assert (found and found.name) == entry
