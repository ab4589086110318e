"""Stored log-probs that no policy can have given are found without the policy."""

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.rollouts.logprob_checks import Checks

OWN = -np.linspace(0.01, 3, 20)


def group(behavior, **fields):
    behavior = np.asarray(behavior, np.float32)
    about = dict(group_id="g0", prompt="p", texts=["a"], rewards=[0], prompt_tokens=[1])
    about |= {"lengths": [len(behavior)], "tokens": np.ones(len(behavior))}
    return rollouts.Group(**about, behavior_logprobs=behavior, **fields)


def problems(*groups):
    checks = Checks()
    for one in groups:
        checks.add(one)
    return " | ".join(checks.problems())


@pytest.mark.parametrize(
    ("behavior", "fields", "said"),
    [
        (OWN, {}, ""),
        (OWN * 5, {}, ""),
        (OWN - 200, {}, "mean of -20"),
        (OWN[:9] - 200, {}, "mean of -20"),
        ([-24, -23, *np.full(7, -1.0)], {}, ""),
        ([-30], {}, ""),
        ([-50], {}, "mean of -50"),
        (np.linspace(-20, -19, 10), {}, ""),  # a text of another model may be as unlikely
        (np.where(np.arange(20) == 3, -200, OWN), {"mask": np.arange(20) != 3}, ""),
        (np.zeros(20), {}, "all 20 tokens"),
        (OWN, {"temperature": 1.0, "policy_logprobs": OWN * 2}, "the declared 1"),
        (OWN, {"temperature": 0.7, "policy_logprobs": OWN}, "temperature 0.7"),
        (OWN, {"temperature": 0.7, "policy_logprobs": OWN * 0.8}, ""),
        (OWN, {"sampling_logprobs": OWN / 2}, "top_k, top_p or min_p"),
        (OWN, {"sampling_logprobs": OWN / 2, "top_p": 0.9}, ""),
        (OWN, {"sampling_logprobs": OWN * 2, "top_k": 4}, "above sampling_logprobs"),
    ],
)
def test_what_cannot_be_is_told_with_its_fix(behavior, fields, said):
    found = problems(group(behavior, **fields))
    assert said in found and bool(found) == bool(said) == ("rescore --replace" in found)


def test_values_that_a_group_refuses_are_found_where_they_were_stored_all_the_same():
    wrong = group(OWN)
    wrong.behavior_logprobs = np.where(np.arange(20) == 3, np.nan, OWN)
    wrong.ref_logprobs = np.full(20, 0.5, np.float32)
    text = rollouts.Group(group_id="t", prompt="p", texts=["a"], rewards=[1])
    found = problems(text, wrong, group(OWN))
    for part in ("behavior_logprobs are not", "such as nan", "ref_logprobs are not", "first g0"):
        assert part in found


def test_verify_says_so_only_where_it_is_asked_to_look(tmp_path):
    rollouts.write(tmp_path / "r", [group(OWN - 200)], writer="w")
    assert rollouts.verify(tmp_path / "r").ok
    report = rollouts.verify(tmp_path / "r", deep=True)
    assert not report.ok and "mean of -20" in str(report.problems[0]) and report.intact_groups == 1
