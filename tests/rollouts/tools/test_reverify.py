"""Rewards under another verifier: what changed is counted."""

import dataclasses

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.rollouts.tools import rescoring as module
from grre_jax.rollouts.tools.rescoring import reverify
from grre_jax.tasks import Verdict
from grre_jax.tasks.judging import InProcess

from ...groups import text_group


class Length:
    """Right is a completion as long as the answer; an empty one is an error."""

    name = "length"

    def verify(self, question, completion):
        return Verdict(
            float(len(completion) == len(question.answer)),
            {"length": len(completion) / (completion != "")},
        )


class Pays:
    """The reward is 1."""

    name = "pays"

    def verify(self, question, completion):
        return Verdict(1.0)


@pytest.fixture
def folder(tmp_path):
    groups = [
        text_group(n, ["xyz", "x", ""], [1, n % 2, 0.25], answer="abc", extra={"n": n})
        for n in range(4)
    ]
    rollouts.write(tmp_path / "r", groups, writer="w", metadata={"task": "t", "reward": "old 1"})
    return tmp_path / "r"


def test_rewards_change_and_nothing_else(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GROUPS_AT_ONCE", 3)
    how = {"task": "length", "reward": "new 2"}
    changes = reverify(folder, tmp_path / "out", InProcess(Length()), how)
    copy = rollouts.read(tmp_path / "out")
    for before, group in zip(rollouts.read(folder), copy, strict=True):
        np.testing.assert_array_equal(group.rewards, [1, 0, np.nan])
        np.testing.assert_array_equal(group.components["length"], [3, 1, np.nan])
        assert group.extra == before.extra | {
            "verify_failures": ["", "", "error"],
            "verify_reasons": ["", "", "ZeroDivisionError: division by zero"],
        }
        own = {"rewards": before.rewards, "components": {}, "extra": before.extra}
        assert dataclasses.replace(group, **own) == before
    (entry,) = copy.datasets
    assert entry.metadata["history"] == [{"operation": "reverify"} | how]
    assert entry.metadata["reward"] == "new 2" and entry.failures == 4
    assert changes == 6


def test_failures_of_the_verifier_before_go(folder, tmp_path):
    reverify(folder, tmp_path / "one", InProcess(Length()), {"reward": "new 2"})
    reverify(tmp_path / "one", tmp_path / "two", InProcess(Pays()), {"reward": "new 3"})
    first, *_ = rollouts.read(tmp_path / "two")
    assert first.rewards.tolist() == [1, 1, 1] and "verify_failures" not in first.extra
