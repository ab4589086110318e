import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import manifest, writer

from ..groups import group_of_tfds

ROOT = Path(__file__).parents[2]


def read_with_tfds(builder):
    return [group_of_tfds(record) for record in builder.as_data_source()[writer.SPLIT]]


def test_tfds_reads_one_data_set_and_all_of_them(folder, make_group):
    import tensorflow_datasets as tfds

    folders = [folder / entry.name for entry in rollouts.read(folder).datasets]
    expected = [make_group(i, version=i // 4) for i in range(12)]
    builder = tfds.builder_from_directory(folders[1])
    assert read_with_tfds(builder) == expected[4:8]
    assert builder.info.splits[writer.SPLIT].num_examples == 4
    assert builder.info.metadata["task"] == "arithmetic"
    assert read_with_tfds(tfds.builder_from_directories(folders)) == expected
    assert list(rollouts.read(folder)) == expected


def test_writing_and_reading_imports_no_tensorflow(tmp_path):
    code = """
import sys
import tensorflow_datasets as tfds
from grre_jax import rollouts
folder = sys.argv[1]
name = folder + "/" + rollouts.write(folder, [rollouts.Group(group_id="a", prompt="p", texts=["t"], rewards=[1])], writer="w")
print(len(rollouts.read(folder)), rollouts.verify(folder).ok, len(tfds.builder_from_directory(name).as_data_source()["train"]))
print([name for name in ("tensorflow", "torch") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 True 1\n[]\n"


def test_what_is_sealed_says_where_it_comes_from(folder):
    reader = rollouts.read(folder)
    entry = reader.datasets[1]
    assert entry.name == "sampler-v000001-p00000004" and entry.policy_version == 1
    assert (entry.groups, entry.completions, entry.positions) == (4, 16, ((4, 4),))
    assert entry.metadata["created_by"].startswith("grre_jax")
    sizes = {path.name: path.stat().st_size for path in (folder / entry.name).iterdir()}
    assert {name: file["bytes"] for name, file in entry.files.items()} == sizes
    groups = [reader[i] for i in range(4, 8)]
    assert entry.tokens == sum(len(group.tokens) for group in groups)
    assert entry.reward_mean == pytest.approx(np.mean([group.rewards for group in groups]))


def test_what_is_sealed_is_never_written_again(folder, make_group):
    """Nor is its name used again if it is lost."""
    before = {path: path.read_bytes() for path in folder.rglob("*/*") if path.is_file()}
    lines = (folder / manifest.FILENAME).read_bytes()
    about = {"writer": "sampler", "policy_version": 1}
    names = [rollouts.write(folder, [make_group(4, version=1)], **about)]
    assert all(path.read_bytes() == content for path, content in before.items())
    assert (folder / manifest.FILENAME).read_bytes().startswith(lines)
    shutil.rmtree(folder / names[0])
    names.append(rollouts.write(folder, [make_group(4, version=1)], **about))
    assert len({*names, "sampler-v000001-p00000004"}) == 3


def test_a_folder_in_which_nothing_was_sealed_is_removed_if_it_is_new(folder, tmp_path, make_group):
    def groups():
        yield make_group(20)
        raise DataError("wrong")

    (tmp_path / "empty").mkdir()
    before = sorted(folder.rglob("*"))
    for target in (folder, tmp_path / "new", tmp_path / "empty"):
        with pytest.raises(DataError, match="wrong"):
            rollouts.write(target, groups(), writer="w")
    assert sorted(folder.rglob("*")) == before
    assert not (tmp_path / "new").exists() and (tmp_path / "empty").is_dir()


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"groups": []}, DataError, "no groups"),
        ({"writer": "a/b"}, UsageError, "writer: .*'a/b'"),
        ({"policy_version": 4}, DataError, "policy_version"),
        ({"metadata": {"a": float("nan")}}, UsageError, "metadata"),
        ({"folder": __file__}, DataError, "test_writer.py"),
        ({"folder": "gs://bucket/run"}, UsageError, "gs://bucket/run"),
    ],
)
def test_bad_requests_are_named(tmp_path, make_group, options, error, named):
    arguments = {"groups": [make_group(1)], "writer": "w", "policy_version": 3} | options
    with pytest.raises(error, match=named):
        rollouts.write(arguments.pop("folder", tmp_path / "r"), **arguments)
    assert not (tmp_path / "r").exists()


def test_processes_write_to_one_folder_each_under_its_own_name(tmp_path, make_group):
    def run(name):
        for position in range(8):
            about = {"writer": name, "policy_version": 0}
            rollouts.write(tmp_path, [make_group(position, version=0)], **about)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, "abcd"))
    assert rollouts.verify(tmp_path).intact_groups == 32
    assert [len(numbers) for numbers in rollouts.read(tmp_path).index.values()] == [4] * 8


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
    reader = rollouts.read(tmp_path / "r")
    names = [entry.name for entry in reader.datasets]
    assert set(reported) <= set(names) and len(names) == len(set(names)) and len(reported) >= 6


FULL_DISK = """
import resource, signal, sys
from grre_jax import rollouts
from grre_jax.errors import DataError
from tests.groups import stored_group
folder, limit = sys.argv[1], int(sys.argv[2])
group = stored_group(0, longest=10_000)
rollouts.write(folder, [group], writer="w")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for _ in range(2):
    try:
        rollouts.write(folder, [group], writer="w")
    except DataError as error:
        print(error)
"""


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path):
    """A limit on file size stands in for the full disk."""
    limit = 30_000
    words = [sys.executable, "-c", FULL_DISK, str(tmp_path / "r"), str(limit)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count(f"rollouts to {tmp_path}") == 2
    report = rollouts.verify(tmp_path / "r")
    assert report.ok and report.datasets == 1
