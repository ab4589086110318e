"""Who samples for a run: shares that overlap, learners that explorers do not go with, and runs
that were replaced.
"""

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.training.actors.lease import Lease
from grre_jax.training.actors.registry import (
    mark_run,
    refuse_explorer,
    refuse_learner,
    require_same_draws,
)


@pytest.fixture
def living(tmp_path):
    """`living(**details)`: explorer "a", who lives."""
    return lambda **details: Lease(
        tmp_path / "explorers" / "a.json", "an explorer named a", **details
    )


def test_a_share_that_another_has_is_refused_while_it_lives(living, tmp_path):
    def begin(index, count, name="b"):
        refuse_explorer(tmp_path, name, index, count, free=False)

    with living(index=0, explorers=2):
        begin(1, 2)
        begin(0, 2, name="a")  # itself
        for share, option in (((0, 2), "--index"), ((1, 3), "--explorers")):
            with pytest.raises(UsageError, match=option):
                begin(*share)
    begin(0, 2)


def test_a_learner_goes_with_explorers_of_its_own_kind(living, tmp_path):
    learner = {"samples": False, "free": True, "overwrite": False}
    with living(free_running=True):
        refuse_learner(tmp_path, **learner)
        for other in ({"free": False}, {"samples": True}, {"overwrite": True}):
            with pytest.raises(UsageError, match="explorer a"):
                refuse_learner(tmp_path, **learner | other)
    refuse_learner(tmp_path, **learner | {"free": False})


def test_a_run_of_other_draws_is_not_continued(tmp_path):
    require_same_draws(tmp_path)  # killed before its run.json was written: it begins anew
    mark_run(tmp_path)
    (tmp_path / "checkpoints" / "0").mkdir(parents=True)
    require_same_draws(tmp_path)
    for content in ('{"id": "of a version before"}', '{"id": "", "random_streams": 3}'):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(UsageError, match="random_streams"):
            require_same_draws(tmp_path)
    for content in ('{"id": "cut', "[]"):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(DataError, match=r"run\.json: damaged"):
            require_same_draws(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(UsageError, match="random_streams"):
        require_same_draws(tmp_path)
