"""pass@k and maj@k of hand-made groups."""

import numpy as np
import pytest

from grre_jax.reporting import wilson_interval
from grre_jax.rollouts import Group
from grre_jax.training.measures import measures


class Votes:
    """Answers are the texts' last letters; "?" is none."""

    name = "votes"

    def final_answer(self, completion):
        return None if completion.endswith("?") else completion[-1:]


class Silent:
    name = "silent"


def group(number, texts, rewards, **fields):
    return Group(group_id=f"g{number}", prompt="q", texts=texts, rewards=rewards, **fields)


GROUPS = [group(0, ["a", "xb", "b", "?"], [0, 1, 1, 0]), group(1, ["c", "c", "d", "d"], [1, 1, 0, 0]), group(2, ["?"] * 4, [0] * 4)]


def test_by_hand():
    found = measures(GROUPS, Votes())
    assert found["num_samples"] == 4 and found["left_out"] == {} and list(found["pass_at_k"]) == list(found["maj_at_k"]) == ["1", "2", "4"]
    means = {name: [found[name][k]["value"] for k in ("1", "2", "4")] for name in ("pass_at_k", "maj_at_k")}
    assert means["pass_at_k"] == pytest.approx([1 / 3, 2 * (5 / 6) / 3, 2 / 3])
    # a b, b -: wrong and right; c c, d d: right and wrong; of all four b, c (two each, c first) and nobody
    assert means["maj_at_k"] == pytest.approx([1 / 3, (0.5 + 0.5 + 0) / 3, 2 / 3])
    low, high = wilson_interval(2, 3)
    assert found["maj_at_k"]["4"] == pytest.approx({"value": 2 / 3, "low": low, "high": high})
    assert 0 <= found["pass_at_k"]["2"]["low"] < found["pass_at_k"]["2"]["value"] < found["pass_at_k"]["2"]["high"] <= 1


def test_a_task_that_reads_off_no_answers():
    found = measures(GROUPS, Silent())
    assert "pass_at_k" in found and "maj_at_k" not in found
    assert found["left_out"] == {"maj_at_k": "task silent has no final_answer(completion), which says what a completion votes for"}


def test_rewards_that_are_not_right_or_wrong():
    shaped = [group(0, ["a", "b"], [0.1, 1.3]), group(1, ["a", "b"], [0.0, 0.5])]
    found = measures(shaped, Votes())
    assert found.keys() == {"num_samples", "left_out"} and found["left_out"].keys() == {"pass_at_k", "maj_at_k"}
    assert "verdicts of task votes have no correctness" in found["left_out"]["pass_at_k"]
    correct = [np.array([0, 1], np.float32), np.array([0, 0], np.float32)]
    judged = [group(i, ["a", "b"], g.rewards, components={"correct": correct[i]}) for i, g in enumerate(shaped)]
    found = measures(judged, Votes())
    assert found["pass_at_k"]["1"]["value"] == 0.25 and found["maj_at_k"]["2"]["value"] == 0
