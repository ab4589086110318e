"""A new run that starts from a checkpoint of another one."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import optax
import pytest

from grre_jax import reporting
from grre_jax.errors import DataError, UsageError
from grre_jax.training import build
from grre_jax.training.checkpoints.folder import listed
from grre_jax.training.loop import train
from grre_jax.training.optimizer import make_optimizer
from grre_jax.training.start_from import find

from ..run_processes import first_state, restored

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture
def make(make_config, tiny_run, tmp_path):
    """`make(start, words)`: a run that starts from the tiny one, of one step."""

    def config(start, words=""):
        common = "--training.steps 1 --evaluation.questions 0 --optimizer.learning_rate 2e-3"
        return make_config(tmp_path / "run", f"--start-from {start} {common} {words}")

    return config


def counts(opt_state):
    """Counts of the moments and of the schedule."""
    kinds = (optax.ScaleByAdamState, optax.ScaleByScheduleState)
    parts = jax.tree.leaves(opt_state, is_leaf=lambda part: isinstance(part, kinds))
    found = {type(part): part for part in parts}
    return tuple(int(found[kind].count) for kind in kinds)


def test_it_has_the_policy_and_the_moments_of_the_last_checkpoint(tiny_run, make):
    folder = train(make(tiny_run))
    last = restored(tiny_run, 8)
    first = restored(folder, 0)
    jax.tree.map(np.testing.assert_array_equal, first.params, last.params)
    assert int(first.step) == 0 and listed(folder / "checkpoints") == [0, 1]
    assert counts(last.opt_state) == (8, 8) and counts(first.opt_state) == (8, 0)
    moments = [[part for part in jax.tree.leaves(x.opt_state) if part.ndim] for x in (first, last)]
    jax.tree.map(np.testing.assert_array_equal, *moments)
    metrics = reporting.read_metrics(folder)
    assert "warm_start" not in metrics
    assert metrics["train"][0]["learning_rate"] == pytest.approx(2e-3)
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["start_from"] == {"run": str(tiny_run), "step": 8, "moments": True}
    assert provenance["contains"] == ["arithmetic/train"]


def test_another_optimizer_begins_without_moments(tiny_run, make):
    config = make(f"{tiny_run}:0", "--optimizer.name lion")
    parts = build.build(config)
    start = find(config, parts)
    assert start.provenance() == {"run": str(tiny_run), "step": 0, "moments": False}
    _, like = first_state(parts)
    state = start.state(like, make_optimizer(config.optimizer), parts.mesh)
    jax.tree.map(np.testing.assert_array_equal, state.params, restored(tiny_run, 0).params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state))


def test_a_folder_that_cannot_be_started_from_is_refused_before_anything_is_made(
    tiny_run, make, tmp_path, monkeypatch
):
    """Low-rank terms belong to their base."""
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(tiny_run / "config.json", bare)
    own = dataclasses.replace(make(f"{tiny_run}:8"), run_dir=str(tiny_run))
    parts = build.build(make(tiny_run))
    for config, error, named in (
        (make(tmp_path / "nowhere"), DataError, "nowhere"),
        (make(bare), DataError, "start_from"),
        (make(f"{tiny_run}:5"), UsageError, "0, 6, 8"),
        (make(tiny_run, "--model.hidden_size 24"), UsageError, "start_from"),
    ):
        with pytest.raises(error, match=named):
            find(config, parts)
    with pytest.raises(UsageError, match="start_from"):
        train(own, overwrite=True)
    assert listed(tiny_run / "checkpoints")[-1] == 8
    monkeypatch.setattr(build, "model_shape", lambda config: ("shape", "rank 4"))
    assert find(make(tiny_run), parts).step == 8
    with pytest.raises(UsageError, match="model.path"):
        find(make(tiny_run, "--model.path elsewhere"), parts)
