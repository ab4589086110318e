import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts.tools import show

from ...groups import played_group


def order(text):
    return [
        int(line.split(":")[0].split()[1])
        for line in text.splitlines()
        if line.startswith("group ")
    ]


def test_show_filters(folder, printed):
    show.show(folder, 2, start=-3, width=5)
    text = printed()
    assert (
        order(text) == [9, 10]
        and "reward 1, format 1, shape" in text
        and "behavior_logprobs, sampling_logprobs, policy_logprobs" in text
    )
    assert "é3 [b… (" in text  # square brackets as they are
    with pytest.raises(DataError, match=str(folder)):
        show.show(folder, keep=lambda group: False)


def test_trajectories_are_shown_by_their_turns(tmp_path, printed):
    rollouts.write(tmp_path, [played_group(1)], writer="w")
    show.show(tmp_path)
    lines = [line.strip() for line in printed().splitlines()]
    assert "environment: guess_number" in lines[0]
    turns = [line for line in lines[1:] if line.startswith(("turn", "environment"))]
    assert turns == [
        *("turn 0: 5", "environment: <", "turn 1 (reward 1): 3"),
        *("turn 0: 1", "environment: >", "turn 1: 2", "environment: >"),
    ]


def test_info(folder, printed, make_group):
    (folder.parent / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        show.info(folder.parent / "empty")
    about = {"writer": "import", "metadata": {"contains": ["gsm8k/test"]}}
    rollouts.write(folder, [make_group(-1, version=-1)], **about)
    show.info(folder)
    text = printed()
    for part in ("13", "-1 to 2", "import, sampler", "gsm8k/test", "arithmetic"):
        assert part in text
