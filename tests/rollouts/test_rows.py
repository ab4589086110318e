import json
from pathlib import Path

import numpy as np
import pytest

from grre_jax.errors import DataError
from grre_jax.rollouts import rows

NAMES = {name: name for name in (*rows.GROUP_COLUMNS, *rows.COMPLETION_COLUMNS, *rows.OWN_GROUP_COLUMNS, *rows.OWN_COMPLETION_COLUMNS)}
FOREIGN = {name: name for name in (*rows.GROUP_COLUMNS, *rows.COMPLETION_COLUMNS)}


def group_of(row, names=NAMES):
    return rows.to_group(rows.Line(Path("x"), "line 1", row), names, "x", "")


def test_a_row_is_json_and_becomes_the_group_again(make_group):
    group = make_group(3)
    row = rows.of_group(group, {"writer": "w"})
    assert rows.is_own(row) and "record" not in row and json.loads(json.dumps(row, allow_nan=False)) == row
    assert group_of(row) == group


def test_a_row_needs_its_record_where_it_cannot_say_everything(make_group):
    group = make_group(3)
    group.unknown = {"verdict": b"\n\x03\n\x01x"}
    again, data = group_of(rows.of_group(group, {"writer": "w"}))
    assert again == group and isinstance(data, bytes)


def test_numbers_that_json_has_not_are_written_as_their_bits():
    for value in (np.nan, np.inf, -np.inf, np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[0]):
        (said,) = rows._floats(np.asarray([value], np.float32))
        assert isinstance(said, str) and rows.number_of_bits(said).tobytes() == np.float32(value).tobytes()
    assert rows._floats(np.asarray([0.1], np.float32)) == [float(np.float32(0.1))]


def test_names_that_may_mean_anything_are_kept_in_extra_unless_they_are_mapped():
    row = {"prompt": "p", "position": "first", "engine": 3, "completions": [{"text": "t", "reward": 1, "mask": "x"}]}
    group = group_of(row, FOREIGN)
    assert group.position == -1 and group.extra == {"position": "first", "engine": 3, "completions": [{"mask": "x"}]}
    assert group_of(row | {"place": 4}, FOREIGN | {"position": "place"}).position == 4


def test_chat_messages_become_text():
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    row = {"prompt": messages, "completions": [{"text": messages[1:], "reward": 0}]}
    group = group_of(row, FOREIGN)
    assert (group.prompt, group.texts) == ("user: hi\nassistant: ho", ["ho"])
    with pytest.raises(DataError, match="field prompt is a list; give a string, or chat messages"):
        group_of(row | {"prompt": [3]}, FOREIGN)


def test_components_must_agree():
    completions = [{"text": "t", "reward": 1, "components": {"a": 1}}, {"text": "t", "reward": 1, "components": {"b": 1}}]
    with pytest.raises(DataError, match="field components has other names"):
        group_of({"prompt": "p", "completions": completions})


def test_rows_are_gathered_while_they_agree():
    found = [(f"line {i}", {"p": p, "k": i}) for i, p in enumerate("aabba")]
    assert [(place, [row["k"] for row in group]) for place, group in rows.in_groups(iter(found), ("p",))] == [
        ("line 0", [0, 1]),
        ("line 2", [2, 3]),
        ("line 4", [4]),
    ]
