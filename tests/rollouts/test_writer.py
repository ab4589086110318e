import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import writer

from ..groups import group_of_tfds

ROOT = Path(__file__).parents[2]


def test_tfds_reads_the_data_sets_of_a_folder(folder, make_group):
    import tensorflow_datasets as tfds

    folders = [folder / entry.name for entry in rollouts.read(folder).datasets]
    records = tfds.builder_from_directories(folders).as_data_source()[writer.SPLIT]
    assert list(map(group_of_tfds, records)) == [make_group(i, version=i // 4) for i in range(12)]
    info = tfds.builder_from_directory(folders[1]).info
    assert info.splits[writer.SPLIT].num_examples == 4 and info.metadata["task"] == "arithmetic"


def test_what_is_sealed_says_where_it_comes_from(folder):
    reader = rollouts.read(folder)
    entry = reader.datasets[1]
    assert entry.name == "sampler-v000001-p00000004"
    assert (entry.groups, entry.completions, entry.positions) == (4, 16, ((4, 4),))
    sizes = {path.name: path.stat().st_size for path in (folder / entry.name).iterdir()}
    assert {name: file["bytes"] for name, file in entry.files.items()} == sizes
    groups = [reader[i] for i in range(4, 8)]
    assert entry.tokens == sum(len(group.tokens) for group in groups)
    assert entry.reward_mean == pytest.approx(np.mean([group.rewards for group in groups]))


def test_what_is_sealed_is_never_written_again(folder, make_group):
    """Nor is its name used again if it is lost."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    group = make_group(4, version=1)
    names = {rollouts.write(folder, [group], writer="sampler", policy_version=1)}
    assert all(path.read_bytes().startswith(content) for path, content in before.items())
    shutil.rmtree(folder / "sampler-v000001-p00000004")
    names.add(rollouts.write(folder, [group], writer="sampler", policy_version=1))
    assert len(names - {"sampler-v000001-p00000004"}) == 2


def test_a_write_that_fails_seals_nothing(folder, tmp_path, make_group):
    def groups():
        yield make_group(20)
        raise DataError("wrong")

    before = sorted(folder.rglob("*"))
    for target in (folder, tmp_path / "new"):
        with pytest.raises(DataError, match="wrong"):
            rollouts.write(target, groups(), writer="w")
    assert sorted(folder.rglob("*")) == before
    assert not len(rollouts.read(tmp_path / "new"))


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"groups": []}, DataError, "no groups"),
        ({"writer": "a/b"}, UsageError, "writer: .*'a/b'"),
        ({"policy_version": 4}, DataError, "policy_version"),
    ],
)
def test_bad_requests_are_named(tmp_path, make_group, options, error, named):
    arguments = {"groups": [make_group(1)], "writer": "w", "policy_version": 3} | options
    with pytest.raises(error, match=named):
        rollouts.write(tmp_path / "r", **arguments)
    assert not (tmp_path / "r" / "manifest.jsonl").read_text()


WRITE_FOR_EVER = """
import itertools, os, sys
from grre_jax import rollouts
from tests.groups import stored_group
folder = sys.argv[1]
for version in itertools.count(len(rollouts.read(folder)) if os.path.isdir(folder) else 0):
    groups = [stored_group(4 * version + i, longest=2000, version=version) for i in range(4)]
    print(rollouts.write(folder, groups, writer="w", policy_version=version), flush=True)
"""


def test_a_killed_writer_loses_no_sealed_data_set(tmp_path):
    reported = []
    for attempt in range(3):
        words = [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path / "r")]
        child = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        # However slow the machine is, two data sets are sealed; the pause only varies where in
        # the next one the kill falls.
        reported += [child.stdout.readline().strip() for _ in range(2)]
        time.sleep(0.0137 * attempt)
        child.kill()
        reported += child.communicate()[0].split("\n")[:-1]
        report = rollouts.verify(tmp_path / "r")
        assert report.ok and report.intact_groups == report.groups == 4 * report.datasets
    assert set(reported) <= {entry.name for entry in rollouts.read(tmp_path / "r").datasets}


FULL_DISK = """
import resource, signal, sys
from grre_jax import rollouts
from grre_jax.errors import DataError
from tests.groups import stored_group
folder = sys.argv[1]
group = stored_group(0, longest=10_000)
rollouts.write(folder, [group], writer="w")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
for _ in range(2):
    try:
        rollouts.write(folder, [group], writer="w")
    except DataError as error:
        print(error)
"""


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path):
    """A limit on file size stands in for the full disk."""
    words = [sys.executable, "-c", FULL_DISK, str(tmp_path / "r")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count(f"rollouts to {tmp_path}") == 2
    report = rollouts.verify(tmp_path / "r")
    assert report.ok and report.datasets == 1
