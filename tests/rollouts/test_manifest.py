import itertools
import json

import pytest
from hypothesis import given, strategies as st

from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage.local import LocalStorage


def tail_of(folder):
    return LocalStorage(folder).tail()


def entry(name="a-v000001", **fields):
    files = {
        "x.array_record-0": {"sha256": "ab" * 32, "bytes": 17},
        "features.json": {"sha256": "cd" * 32, "bytes": 3},
    }
    values = dict(name=name, writer="a", policy_version=1, groups=3, completions=12, tokens=99)
    values |= dict(reward_mean=0.5, positions=((4, 2), (9, 1)), files=files)
    values |= dict(created="2025-01-02T03:04:05.678+00:00", metadata={"task": "arithmetic"})
    return manifest.Entry(**(values | fields))


@pytest.mark.parametrize("left", [1, -2, -1])
def test_a_torn_last_line_says_nothing_and_is_replaced(tmp_path, left):
    path = tmp_path / manifest.FILENAME
    manifest.append(tmp_path, entry("d0"))
    whole = path.read_bytes()
    manifest.append(tmp_path, entry("d1"))
    path.write_bytes(whole + path.read_bytes()[len(whole) :][:left])
    listed = ["d0", "d1"] if left == -1 else ["d0"]  # only its newline is missing
    tail = tail_of(tmp_path)
    assert [one.name for one in tail.new()] == listed
    manifest.append(tmp_path, entry("d2"))
    assert [one.name for one in tail.new()] == ["d2"]
    assert [one.name for one in tail_of(tmp_path).new()] == [*listed, "d2"]


def test_every_flipped_bit_is_refused_by_line_and_the_other_lines_are_read(tmp_path, flip):
    """In some places of every part, with characters that one bit makes a newline."""
    entries = [entry(f"d{i}", metadata={"task": "J*J"}) for i in range(3)]
    manifest.append(tmp_path, *entries)
    path = tmp_path / manifest.FILENAME
    whole = path.read_bytes()
    special = {place for place, byte in enumerate(whole) if byte in b"\nJ*"}
    for offset in {*range(0, len(whole), 7), *range(len(whole) - 30, len(whole)), *special}:
        line = whole[:offset].count(b"\n")
        for bit in {offset % 8, 5, 6} if offset in special else {offset % 8}:
            path.write_bytes(whole)
            flip(path, offset, bit)
            with pytest.raises(manifest.CorruptManifest, match=f"{path.name}, line {line + 1}:"):
                tail_of(tmp_path).new()
            read = [one for one in tail_of(tmp_path).scan() if isinstance(one, manifest.Entry)]
            # A newline that became another byte joins two lines; the last one is of no use.
            lost = {line, line + 1} if whole[offset : offset + 1] == b"\n" else {line}
            assert read == [one for i, one in enumerate(entries) if i not in lost]


def test_a_damaged_last_newline_is_not_cut_off_by_the_next_writer(tmp_path, flip):
    path = tmp_path / manifest.FILENAME
    manifest.append(tmp_path, entry("d0"))
    flip(path, -1)
    manifest.append(tmp_path, entry("d1"))
    damaged, read = tail_of(tmp_path).scan()
    assert isinstance(damaged, manifest.CorruptManifest) and read.name == "d1"
    content = path.read_bytes()
    assert content.count(b'"name":"d0"') == 1  # the line can be restored by hand


def test_a_newer_minor_version_is_read(tmp_path):
    newer = entry("d0", schema_version="1.9.0")
    line = json.loads(manifest.to_line(newer)) | {"verifier": {"name": "v"}}
    del line["crc32"]
    body = json.dumps(line).encode()
    (tmp_path / manifest.FILENAME).write_bytes(body[:-1] + manifest._seal(body) + b"\n")
    assert tail_of(tmp_path).new() == [newer]


@given(st.lists(st.integers(-1, 6)))
def test_runs_are_the_positions(positions):
    runs = manifest.runs(positions)
    steps = [[first + (first >= 0) * n for n in range(count)] for first, count in runs]
    assert list(itertools.chain.from_iterable(steps)) == positions
    assert manifest.runs([-1, 0, 1, 2, -1, -1]) == ((-1, 1), (0, 3), (-1, 2))


def test_a_damaged_line_hides_nothing_from_a_reader_that_goes_on(tmp_path, flip):
    path, tail = tmp_path / manifest.FILENAME, tail_of(tmp_path)
    manifest.append(tmp_path, *(entry(f"d{i}") for i in range(3)))
    lines = path.read_bytes().splitlines(keepends=True)
    flip(path, len(lines[0]) + 9)
    for _ in range(2):
        with pytest.raises(manifest.CorruptManifest, match="line 2:"):
            tail.new()
    path.write_bytes(lines[0] + lines[2])  # as the message says
    assert [one.name for one in tail.new()] == ["d0", "d2"]
    path.write_bytes(lines[0])
    with pytest.raises(manifest.CorruptManifest, match="shorter"):
        tail.new()
