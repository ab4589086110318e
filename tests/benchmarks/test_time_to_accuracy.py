"""The race to an accuracy: what the peers share, how rounds are counted, and what fails."""

import json

import pytest

QUESTIONS = {"prompts": ["1+2*3>", "4-5-6>"], "answers": ["9", "3"]}


@pytest.fixture
def race(imported):
    return imported("time_to_accuracy")


@pytest.fixture
def peer_run(imported, tmp_path):
    """A peer's run of four steps with a snapshot every other."""
    (tmp_path / "questions.json").write_text(json.dumps(QUESTIONS))
    job = {"questions": str(tmp_path / "questions.json"), "new_tokens": 4, "every": 2}
    files = {"snapshots": str(tmp_path), "output": str(tmp_path / "output.json")}
    return imported("peer_rl").Run(job | files)


def test_a_completion_is_right_if_it_ended_on_the_answer(peer_run):
    completions, answers = ["8,9", "9", "1119", "8,8", ""], ["9", "9", "9", "9", "9"]
    assert peer_run.reward(["?"] * 5, completions, answers, other=1) == [1, 1, 0, 0, 0]
    assert (peer_run.prompts, peer_run.answers) == (QUESTIONS["prompts"], QUESTIONS["answers"])


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


def test_rounds_that_do_not_reach_a_level_are_counted_apart(race):
    rounds = {
        "trl": [
            race.one_round(steps(*whole), 1, accuracy)
            for whole, accuracy in (((1, 1), (0.7, 0.9)), ((2, 4), (0.7, 0.8)), ((3, 3), (0, 0.1)))
        ]
    }
    (record,) = race.records_of(rounds, [0.8, 0.95])
    spread = {"low": 2, "median": 4, "high": 6}
    assert record["seconds_to"]["0.8"] == {"reached": 2, "of": 3, "seconds": spread}
    assert record["seconds_to"]["0.95"] == {"reached": 0, "of": 3, "seconds": None}
    assert record["last_accuracy"] == {"low": 0.1, "median": 0.8, "high": 0.9}
    assert record["step_seconds"]["whole"] == {"low": 1, "median": 3, "high": 4}
