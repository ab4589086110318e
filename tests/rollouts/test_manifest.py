import json

import pytest

from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage.local import LocalStorage


def tail_of(folder):
    return LocalStorage(folder).tail()


def entry(name="a-v000001", **fields):
    values = dict(
        name=name,
        writer="a",
        policy_version=1,
        groups=3,
        completions=12,
        tokens=99,
        reward_mean=0.5,
        positions=((4, 2), (9, 1)),
        files={
            "x.array_record-0": manifest.SealedFile("ab" * 32, 17),
            "features.json": manifest.SealedFile("cd" * 32, 3),
        },
        created="2025-01-02T03:04:05.678+00:00",
        metadata={"task": "arithmetic"},
    )
    return manifest.Entry(**(values | fields))


def test_entries_survive_in_order(tmp_path):
    entries, tail = [entry(f"d{i}", policy_version=i) for i in range(3)], tail_of(tmp_path)
    assert tail.new() == []  # no manifest yet
    for one in entries:
        manifest.append(tmp_path, one)
        assert tail.new() == [one] and tail.new() == []
    assert tail_of(tmp_path).new() == entries
    assert entries[0].bytes == 20 and entries[0].data_file == "x.array_record-0"


@pytest.mark.parametrize("removed", [1, 2, "all but one"])
def test_a_torn_last_line_says_nothing_and_is_replaced(tmp_path, removed):
    path = tmp_path / manifest.FILENAME
    manifest.append(tmp_path, entry("d0"))
    whole = path.read_bytes()
    manifest.append(tmp_path, entry("d1"))
    line = path.read_bytes()[len(whole) :]
    torn = line[:1] if removed == "all but one" else line[:-removed]
    path.write_bytes(whole + torn)
    finished = removed == 1  # only its newline is missing
    tail = tail_of(tmp_path)
    assert [one.name for one in tail.new()] == (["d0", "d1"] if finished else ["d0"])
    assert tail.unfinished != finished
    manifest.append(tmp_path, entry("d2"))
    assert [one.name for one in tail.new()] == ["d2"]
    assert [one.name for one in tail_of(tmp_path).new()] == (
        ["d0", "d1", "d2"] if finished else ["d0", "d2"]
    )


def offsets(whole):
    """Some of every part of a manifest: of the texts, of the checksums, every newline."""
    return sorted(
        {
            *range(0, len(whole), 7),
            *range(len(whole) - 30, len(whole)),
            *(i for i, byte in enumerate(whole) if byte in b"\nJ*"),
        }
    )


@pytest.fixture
def three(tmp_path):
    """A manifest of three lines, with characters that one bit makes a newline."""
    for i in range(3):
        manifest.append(tmp_path, entry(f"d{i}", metadata={"task": "J*J"}))
    return tmp_path / manifest.FILENAME


def test_every_flipped_bit_is_refused_by_line_and_the_other_lines_are_read(three, flip):
    whole, expected = three.read_bytes(), tail_of(three.parent).new()
    for offset in offsets(whole):
        line = whole[:offset].count(b"\n")
        for bit in {offset % 8, 5, 6}:  # of these two one makes J or * a newline
            three.write_bytes(whole)
            flip(three, offset, bit)
            # A newline that became another byte joins two lines; the last one is of no use.
            newline = whole[offset : offset + 1] == b"\n"
            with pytest.raises(
                manifest.CorruptManifest, match=rf"{manifest.FILENAME}, line {line + 1}: damaged"
            ):
                tail_of(three.parent).new()
            read = [one for one in tail_of(three.parent).scan() if isinstance(one, manifest.Entry)]
            lost = {line, line + 1} if newline else {line}
            assert read == [one for i, one in enumerate(expected) if i not in lost]


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


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([], ()),
        ([5, 4, 4, 5], ((5, 1), (4, 1), (4, 2))),
        ([-1, -1, -1], ((-1, 3),)),
        ([-1, 0, 1, -1], ((-1, 1), (0, 2), (-1, 1))),
    ],
)
def test_runs(positions, expected):
    assert manifest.runs(positions) == expected


def test_a_damaged_line_hides_nothing_from_a_reader_that_goes_on(tmp_path, flip):
    path, tail = tmp_path / manifest.FILENAME, tail_of(tmp_path)
    for i in range(3):
        manifest.append(tmp_path, entry(f"d{i}"))
    lines = path.read_bytes().splitlines(keepends=True)
    flip(path, len(lines[0]) + 9)
    flip(path, len(lines[0]) + 19)
    for _ in range(2):
        with pytest.raises(manifest.CorruptManifest, match="line 2: damaged"):
            tail.new()
    path.write_bytes(lines[0] + lines[2])  # as the message says
    assert [one.name for one in tail.new()] == ["d0", "d2"]
    path.write_bytes(lines[0])
    with pytest.raises(manifest.CorruptManifest, match="shorter than what was read"):
        tail.new()
