import itertools
import json

import pytest
from hypothesis import given, strategies as st

from grre_jax.rollouts import manifest


def read(folder):
    """Entries, and the errors of damaged lines."""
    path = folder / manifest.FILENAME
    return list(manifest.entries(path.read_bytes(), str(path)))


def entry(name, **fields):
    numbers = dict(policy_version=1, groups=3, completions=12, tokens=99, reward_mean=0.5)
    values = dict(writer="a", positions=((4, 2), (9, 1)), created="2025-01-02", files={})
    return manifest.Entry(name=name, **numbers | values | fields)


@pytest.mark.parametrize("left", [-2, -1])
def test_a_torn_last_line_says_nothing_and_is_replaced(tmp_path, left):
    path = tmp_path / manifest.FILENAME
    manifest.append(tmp_path, entry("d0"))
    whole = path.read_bytes()
    manifest.append(tmp_path, entry("d1"))
    path.write_bytes(whole + path.read_bytes()[len(whole) :][:left])
    listed = ["d0", "d1"] if left == -1 else ["d0"]  # only its newline is missing
    assert [one.name for one in read(tmp_path)] == listed
    manifest.append(tmp_path, entry("d2"))
    assert [one.name for one in read(tmp_path)] == [*listed, "d2"]


def test_every_flipped_bit_is_refused_by_line_and_the_other_lines_are_read(tmp_path, flip):
    """In some places of every part, with characters that one bit makes a newline."""
    entries = [entry(f"d{i}", metadata={"task": "J*J"}) for i in range(3)]
    manifest.append(tmp_path, *entries)
    path = tmp_path / manifest.FILENAME
    whole = path.read_bytes()
    special = {place for place, byte in enumerate(whole) if byte in b"\nJ*"}
    for offset in {*range(0, len(whole), 7), *special}:
        line = whole[:offset].count(b"\n")
        for bit in (offset % 8, 5, 6):
            path.write_bytes(whole)
            flip(path, offset, bit)
            found = read(tmp_path)
            intact = [one for one in found if isinstance(one, manifest.Entry)]
            damaged = [str(one) for one in found if one not in intact]
            assert f"{path.name}, line {line + 1}:" in damaged[0]
            # A newline that became another byte joins two lines; the last one is of no use.
            lost = {line, line + 1} if whole[offset : offset + 1] == b"\n" else {line}
            assert intact == [one for i, one in enumerate(entries) if i not in lost]


def test_a_damaged_last_newline_is_not_cut_off_by_the_next_writer(tmp_path, flip):
    path = tmp_path / manifest.FILENAME
    manifest.append(tmp_path, entry("d0"))
    flip(path, -1)
    manifest.append(tmp_path, entry("d1"))
    _, intact = read(tmp_path)
    assert intact.name == "d1"
    assert path.read_bytes().count(b'"name":"d0"') == 1  # the line can be restored by hand


def test_a_newer_minor_version_is_read(tmp_path):
    newer = entry("d0", schema_version="1.9.0")
    line = json.loads(manifest.to_line(newer)) | {"verifier": {"name": "v"}}
    del line["crc32"]
    body = json.dumps(line).encode()
    (tmp_path / manifest.FILENAME).write_bytes(body[:-1] + manifest._seal(body) + b"\n")
    assert read(tmp_path) == [newer]


@given(st.lists(st.integers(-1, 6)))
def test_runs_are_the_positions(positions):
    runs = manifest.runs(positions)
    steps = [[first + (first >= 0) * n for n in range(count)] for first, count in runs]
    assert list(itertools.chain.from_iterable(steps)) == positions
