"""Every name that is written to metrics.jsonl is in the table that the report and the
documentation explain it from.
"""

import jax
import jax.numpy as jnp
import pytest

from grre_jax import objectives, reporting
from grre_jax.reporting.metric_names import METRIC_NAMES, described
from grre_jax.reporting.metrics import HEADER

from ..objectives.all_objectives import every_objective


def traced_metrics(objective):
    """The names of an objective's metrics, traced on four responses of two tokens."""

    def metrics(logprobs):
        batch = objectives.Batch(
            mask=jnp.ones(8, bool),
            response_ids=jnp.arange(8) // 2,
            advantages=jnp.ones(4),
            dropped=jnp.zeros(4, bool),
            rewards=jnp.ones(4),
            group_ids=jnp.arange(4) // 2,
            staleness=jnp.ones(4, jnp.int32),
            expert=jnp.zeros(4, bool),
            old_logprobs=logprobs,
            ref_logprobs=logprobs,
            prox_logprobs=logprobs,
        )
        stats = objectives.batch_stats(batch, objective, logprobs)
        found = objectives.policy_loss(objective, logprobs, batch, stats)[1]
        return found | objectives.batch_diagnostics(logprobs, batch)

    return set(jax.eval_shape(metrics, jnp.zeros(8)))


@pytest.mark.slow
def test_the_metrics_of_every_objective_are_explained():
    names = set().union(*map(traced_metrics, every_objective(parts=True).values()))
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
        ("train", "staleness_256_up", "staleness_<range>"),
        ("eval", "component_format", "component_<name>"),
        ("train", "reward_low", None),
        ("train", "rewards", None),
    ],
)
def test_a_name_finds_its_entry(kind, name, entry):
    found = described(kind, name)
    assert (found and found.name) == entry


def test_each_name_has_one_entry_with_a_meaning():
    pairs = [(entry.name, kind) for entry in METRIC_NAMES for kind in entry.kinds]
    assert len(set(pairs)) == len(pairs)
    assert all(entry.kinds and entry.unit and entry.meaning.endswith(".") for entry in METRIC_NAMES)
