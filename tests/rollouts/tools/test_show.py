import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts.tools import inspection

from ...groups import played_group


def test_groups_are_shown(folder, capsys):
    inspection.show(folder, 2, width=5, keep=lambda group: group.position > 8)
    text = capsys.readouterr().out
    assert text.startswith("group 9: g9") and "group 10: g10" in text and "group 11" not in text
    assert "completion: reward 1, format 1, shape" in text
    assert "é3 [b… (22 more)" in text  # square brackets as they are
    with pytest.raises(DataError, match=str(folder)):
        inspection.show(folder, keep=lambda group: False)


def test_trajectories_are_shown_by_their_turns(tmp_path, capsys):
    rollouts.write(tmp_path, [played_group(1)], writer="w")
    inspection.show(tmp_path)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith(("turn", "environment"))] == [
        *("turn 0: 5", "environment: <", "turn 1 (reward 1): 3"),
        *("turn 0: 1", "environment: >", "turn 1: 2", "environment: >"),
    ]
