"""The race to an accuracy: what the peers share, how rounds are counted, and what fails."""

import pytest

QUESTIONS = {"prompts": ["1+2*3>", "4-5-6>"], "answers": ["9", "3"]}


@pytest.fixture
def race(imported):
    return imported("time_to_accuracy")


def steps(*whole):
    found = [{"sampling": x / 4, "training": x / 2, "whole": x, "reward": 0.5} for x in whole]
    del found[-1]["sampling"]  # off-policy, most steps sample nothing
    return {"steps": found}


def test_seconds_count_to_the_first_snapshot_at_the_level(race):
    found = race.one_round(steps(10, 2, 2, 4), 2, [0.8, 0.9])
    assert (found["seconds"], found["accuracy"]) == ([12, 18], [0.8, 0.9])
    assert (found["first_step_seconds"], found["first_reward"]) == (10, 0.5)
    # Means over the last two steps, of 2 and 4 seconds.
    assert found["step_seconds"] == {"sampling": 0.25, "training": 1.5, "whole": 3.0}
    reached = [race.seconds_to(level, found) for level in (0.5, 0.8, 0.81, 0.95)]
    assert reached == [12, 12, 18, None]
