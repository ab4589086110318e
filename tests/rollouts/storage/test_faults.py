"""What may befall a rollout folder, and that what is sealed outlives it.

Kills, torn lines and full disks: test_writer.py, test_manifest.py.
"""

import dataclasses
import datetime
import shutil
import subprocess
import sys

import pytest

from grre_jax import rollouts
from grre_jax.rollouts import manifest, writer
from grre_jax.rollouts.tools import show


def test_a_clock_that_goes_backwards_changes_no_order(tmp_path, make_group, monkeypatch, capsys):
    class Clock(datetime.datetime):
        days = 20

        @classmethod
        def now(cls, zone=None):
            Clock.days -= 7
            return datetime.datetime(2026, 1, Clock.days, tzinfo=zone)

    monkeypatch.setattr(writer.datetime, "datetime", Clock)
    for version in range(2):
        rollouts.write(tmp_path, [make_group(version, version=version)], writer="w")
    reader = rollouts.read(tmp_path)
    assert [entry.created[:10] for entry in reader.datasets] == ["2026-01-13", "2026-01-06"]
    assert [group.position for group in reader] == [0, 1] and reader.at(1) == reader[1]
    show.info(tmp_path)
    assert "2026-01-06 00:00:00 to 2026-01-13 00:00:00" in capsys.readouterr().out


def test_a_manifest_line_that_somebody_copied_does_not_double_its_groups(folder):
    path = folder / manifest.FILENAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines]))
    reader = rollouts.read(folder)
    assert [group.group_id for group in reader] == [f"g{i}" for i in range(12)]
    assert reader.index[0] == [0]
    (problem,) = rollouts.verify(folder).problems
    assert "lists data set sampler-v000000-p00000000 twice" in str(problem)
    path.write_bytes(b"".join(lines))
    reader = rollouts.read(folder)
    with open(path, "ab") as file:
        file.write(lines[1])
    assert reader.refresh() == 0 and len(reader) == 12


def test_of_groups_that_were_sealed_twice_the_first_counts_and_the_other_is_told(
    folder, make_group, capsys
):
    """As when two explorers are given one share, or one is started again while the other still
    runs.
    """
    again = dataclasses.replace(make_group(5, version=1), texts=["other"] * 4)
    for _ in range(2):
        rollouts.write(folder, [again], writer="sampler", policy_version=1)
    rollouts.write(
        folder, [dataclasses.replace(again, seed=9), make_group(5, version=2)], writer="sampler"
    )
    reader = rollouts.read(folder)
    assert reader.find(5, 1) == 5 and reader.at(5, 1) == make_group(5, version=1)
    said = [f"sampler-v000001-p00000005{end}, record 0: group g5" for end in ("", "-2")]
    report = rollouts.verify(folder)
    assert report.ok and report.duplicates == said


def test_a_data_set_folder_that_was_copied_or_renamed(folder, make_group):
    names = [entry.name for entry in rollouts.read(folder).datasets]
    shutil.copytree(folder / names[0], folder / "sampler-v000000-p00000000-2")
    (folder / "notes.txt").touch()
    (folder / names[0] / "thumbs.db").touch()
    ignored = [f"{names[0]}/thumbs.db", "notes.txt", "sampler-v000000-p00000000-2"]
    assert len(rollouts.read(folder)) == 12 and rollouts.verify(folder).ignored == ignored
    name = rollouts.write(folder, [make_group(0, version=0)], writer="sampler", policy_version=0)
    assert name == "sampler-v000000-p00000000-3"  # the foreign folder's name is not taken
    (folder / names[1]).rename(folder / "elsewhere")
    with pytest.raises(rollouts.CorruptShard):
        rollouts.read(folder)[4]
    assert rollouts.read(folder)[0] == make_group(0, version=0)
    (folder / "elsewhere").rename(folder / names[1])
    assert rollouts.verify(folder).ok


def test_a_folder_of_the_next_major_version_is_refused_with_a_way_out(folder):
    entry = rollouts.read(folder).datasets[0]
    manifest.append(folder, dataclasses.replace(entry, name="tomorrow", schema_version="2.0.0"))
    with pytest.raises(manifest.CorruptManifest, match="line 4: .* schema version 2.0.0, .* 1.x"):
        rollouts.read(folder)


def test_a_manifest_that_was_emptied_is_told(folder):
    (folder / manifest.FILENAME).write_bytes(b"")
    report = rollouts.verify(folder)
    assert len(rollouts.read(folder)) == 0 and len(report.ignored) == 3
    (problem,) = report.problems
    assert "manifest.jsonl: lists nothing, and 3 complete data set(s) are there" in str(problem)


FILL_A_DISK = """
import sys
from pathlib import Path
import numpy as np
from grre_jax import rollouts
from grre_jax.errors import DataError
disk = Path(sys.argv[1])
(disk / "ballast").write_bytes(bytes(400_000))
draw, sealed = np.random.default_rng(0), 0
def write(number):
    words = ["".join(map(chr, draw.integers(0x4e00, 0x9000, 5000)))] * 4
    rollouts.write(disk / "r", [rollouts.Group(group_id=str(number), prompt="p", texts=words, rewards=[0, 1, 0, 1])], writer="w")
try:
    for sealed in range(100):
        write(sealed)
except DataError as error:
    print(error)
for _ in range(3):
    try:
        write(sealed)
    except DataError:
        print("full")
report = rollouts.verify(disk / "r")
print(report.ok, report.groups == report.intact_groups == sealed > 2, report.ignored, report.incomplete)
try:
    rollouts.export(disk / "r", disk / "e.jsonl")
    rollouts.export(disk / "r", disk / "f.jsonl")
except DataError as error:
    print(error, (disk / "f.jsonl").exists())
for path in disk.glob("*.jsonl"):
    path.unlink()
(disk / "ballast").unlink()
write(sealed)
print(len(rollouts.read(disk / "r")) == sealed + 1)
"""


def test_a_disk_that_fills_up_keeps_what_is_sealed_and_is_written_again_when_it_has_space(tmp_path):
    """A disk of a megabyte, in a mount namespace of the child's own."""
    mounted = f"mount -t tmpfs -o size=1m none {tmp_path}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mounted], capture_output=True).returncode:
        pytest.skip(
            "this machine lets nobody mount a tmpfs of his own; test_writer.py stands in with a"
            " limit on file sizes"
        )
    words = ["unshare", "-rm", "sh", "-c", f'{mounted} && exec "$0" -c "$1" {tmp_path}']
    words += [sys.executable, FILL_A_DISK]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "nothing was sealed" in lines[0] and lines[1:4] == ["full"] * 3
    assert lines[4] == "True True [] []"
    assert lines[5].startswith(f"Cannot write {tmp_path}/") and lines[5].endswith("False")
    assert lines[6] == "True"
