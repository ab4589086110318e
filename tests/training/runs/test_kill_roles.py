"""Learner and explorers killed for real: the run that comes out is the run that was left alone."""

import functools

import pytest

from grre_jax import rollouts
from grre_jax.config import EvaluationConfig
from grre_jax.training import loop
from grre_jax.training.roles import ExplorerRole, explore_run, learn

from ...run_processes import (
    bits,
    groups,
    kill_all,
    rows,
    start,
    wait_for_step,
    written,
)
from ..test_roles import quiet, together

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


def test_a_killed_learner_and_a_killed_explorer_change_nothing(tiny_run, make_config, tmp_path):
    """Both go on within this process. They start from a checkpoint and evaluate nothing: there is
    less to compile.
    """
    fields = {"start_from": str(tiny_run), "evaluation": EvaluationConfig(questions=0)}
    alone = loop.train(make_config(tmp_path / "alone", **fields), console=quiet())
    config, run = make_config(tmp_path / "run", **fields), tmp_path / "run"
    file = written(config)
    learner = start(file, run, command="learn")
    explorer = start(file, run, "--explorer-name", "a", command="explore")
    wait_for_step([learner, explorer], run, 2)
    explorer.kill()
    explorer.wait()
    learner.kill()
    learner.wait()
    together(
        functools.partial(learn, config, console=quiet()),
        functools.partial(explore_run, config, ExplorerRole("a"), console=quiet()),
    )
    assert rows(run) == rows(alone) and groups(run) == groups(alone)
    assert bits(run) == bits(alone) and rollouts.verify(run / "rollouts").ok
