"""Every name that is written to metrics.jsonl is in the table that the report and the
documentation explain it from.
"""

import jax
import numpy as np
import pytest

from grre_jax import objectives, reporting
from grre_jax.reporting.metric_names import described
from grre_jax.reporting.metrics import HEADER

from ..objectives.all_objectives import every_objective
from ..objectives.drawn_cases import Case


@pytest.mark.slow
def test_the_metrics_of_every_objective_are_explained():
    zeros = np.zeros((4, 2))
    optional = {"prox": zeros, "ref": zeros, "expert": np.arange(4) > 1, "staleness": np.zeros(4)}
    case = Case(zeros, zeros, zeros == 0, np.zeros(4), np.arange(4) // 2, **optional)
    fields = case.fields() | {"advantages": np.zeros(4), "dropped": np.zeros(4, bool)}
    batch = objectives.padded_batch(**fields)
    names = set(objectives.batch_diagnostics(zeros, batch))
    for objective in every_objective(parts=True).values():
        _, metrics = jax.eval_shape(objectives.policy_loss, objective, zeros, batch)
        names |= metrics.keys()
    assert {"correction_mean", "filtered_fraction", "kl_reference_k3", "staleness_256_up"} <= names
    assert [name for name in sorted(names) if described("train", name) is None] == []


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
    "kind, name, entry",
    [
        ("train", "staleness_3", "staleness_<n>"),
        ("train", "staleness_2_3", "staleness_<range>"),
        ("eval", "component_format", "component_<name>"),
        ("train", "reward_low", None),
    ],
)
def test_a_name_finds_its_entry(kind, name, entry):
    found = described(kind, name)
    assert (found and found.name) == entry
