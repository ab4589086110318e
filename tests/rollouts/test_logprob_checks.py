"""Stored log-probs that no policy can have given are found without the policy."""

import dataclasses

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.rollouts.logprob_checks import Checks


def group(behavior, **fields):
    behavior = np.asarray(behavior, np.float32)
    return rollouts.Group(
        group_id="g0",
        prompt="p",
        texts=["a", "b"],
        rewards=[0, 1],
        prompt_tokens=[1],
        lengths=[len(behavior) - 8, 8],
        tokens=np.ones(len(behavior)),
        behavior_logprobs=behavior,
        **fields,
    )


def problems(*groups):
    checks = Checks()
    for one in groups:
        checks.add(one)
    return " | ".join(checks.problems())


OWN = -np.linspace(0.01, 3, 20)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (group(np.full(20, -200) + OWN), "mean of -20"),
        (group(np.full(9, -200) + OWN[:9]), "mean of -20"),
        (group(np.zeros(20)), "are 0 for all 20 tokens"),
        (
            group(OWN, temperature=1.0, policy_logprobs=OWN * 2),
            "another temperature than the declared 1",
        ),
        (
            group(OWN, temperature=0.7, policy_logprobs=OWN),
            "declared to be of temperature 0.7 and equal policy_logprobs",
        ),
        (group(OWN, sampling_logprobs=OWN / 2), "no top_k, top_p or min_p is declared"),
        (
            group(OWN, sampling_logprobs=OWN * 2, top_k=4),
            "behavior_logprobs are above sampling_logprobs",
        ),
    ],
)
def test_what_cannot_be_is_told_with_group_and_fix(given, words):
    found = problems(given)
    assert words in found and "rescore --replace" in found


def test_values_that_a_group_refuses_are_found_where_they_were_stored_all_the_same():
    wrong = group(OWN)
    wrong.behavior_logprobs = wrong.behavior_logprobs.copy()
    wrong.behavior_logprobs[3] = np.nan
    wrong.ref_logprobs = np.full(20, 0.5, np.float32)
    found = problems(wrong, dataclasses.replace(group(OWN), group_id="g1"))
    assert (
        "behavior_logprobs are not log-probs: they hold values such as nan" in found
        and "ref_logprobs are not log-probs" in found
    )
    assert "in 1 groups, the first g0" in found


@pytest.mark.parametrize(
    "fine",
    [
        group(OWN),
        group(OWN * 5),
        group(OWN, temperature=0.7, policy_logprobs=OWN * 0.8),
        group(OWN, top_p=0.9, sampling_logprobs=OWN / 2),
        group(np.linspace(-20, -19, 10)),  # a text of another model may be as unlikely
        group(np.where(np.arange(20) == 3, -200, OWN), mask=np.arange(20) != 3),
        rollouts.Group(group_id="t", prompt="p", texts=["a"], rewards=[1]),
    ],
)
def test_nothing_is_said_against_what_can_be(fine):
    assert problems(fine) == ""


def test_verify_says_so_only_where_it_is_asked_to_look(tmp_path):
    rollouts.write(tmp_path / "r", [group(np.full(20, -200) + OWN)], writer="w")
    assert rollouts.verify(tmp_path / "r").ok
    report = rollouts.verify(tmp_path / "r", deep=True)
    assert not report.ok and "mean of -20" in str(report.problems[0]) and report.intact_groups == 1


def test_a_short_groups_unlikely_tokens_are_not_refused():
    assert problems(group([-24, -23, *np.full(7, -1.0)])) == ""
    one = rollouts.Group(
        group_id="g",
        prompt="p",
        texts=["a"],
        rewards=[0],
        prompt_tokens=[1],
        lengths=[1],
        tokens=[1],
        behavior_logprobs=[-30],
    )
    assert problems(one) == ""
    assert "mean of -50" in problems(dataclasses.replace(one, behavior_logprobs=np.float32([-50])))
