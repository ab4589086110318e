import json
import subprocess
import sys
from pathlib import Path

import pytest

from grre_jax import rollouts
from grre_jax.errors import UsageError


def test_merge_keeps_groups_order_and_provenance(folder, tmp_path, make_group):
    other = tmp_path / "other"
    metadata = {"contains": ["gsm8k/test"], "task": "gsm8k"}
    rollouts.write(other, [make_group(-1, version=-1)], writer="import", metadata=metadata)
    merged = rollouts.merge([folder, other, folder], tmp_path / "m")
    assert list(merged) == [*rollouts.read(folder), *rollouts.read(other)]
    assert [entry.policy_version for entry in merged.datasets] == [0, 1, 2, -1]
    assert [entry.writer for entry in merged.datasets] == ["sampler"] * 3 + ["import"]
    assert merged.contains == {"gsm8k/test"} and merged.datasets[3].metadata["task"] == "gsm8k"
    step = {"operation": "merge", "folders": ["rollouts", "other", "rollouts"]}
    assert merged.datasets[0].metadata["history"] == [step]
    rollouts.merge([tmp_path / "m"], tmp_path / "mm")
    assert len(rollouts.read(tmp_path / "mm").datasets[3].metadata["history"]) == 2


def test_a_folder_that_holds_something_is_not_written_to(folder, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "note").touch()
    for into in (folder, tmp_path / "x", tmp_path / "x" / "note"):
        with pytest.raises(UsageError, match=str(into)):
            rollouts.merge([folder], into)


def test_damage_stops_a_copy(folder, tmp_path):
    entry = rollouts.read(folder).datasets[1]
    (folder / entry.name / entry.data_file).write_bytes(b"")
    with pytest.raises(rollouts.CorruptShard):
        rollouts.merge([folder], tmp_path / "m")
    assert not (tmp_path / "m").exists()  # all or nothing


MEMORY = """
import json, sys, tracemalloc
from concurrent import futures
from pathlib import Path
from grre_jax import rollouts
from grre_jax.tasks.datasets import stored_records
from tests.groups import stored_group

stored_records.ROWS_AT_ONCE = 4
# How many buffers of 256 KiB a data set's digests have at once depends on the machine's load.
threads = futures.ThreadPoolExecutor
futures.ThreadPoolExecutor = lambda count: threads(1)
STEPS = {
    "merge": lambda place: rollouts.merge([place / "r"], place / "m"),
    "jsonl": lambda place: rollouts.export(place / "r", place / "e.jsonl"),
    "import": lambda place: rollouts.import_rows("jsonl", place / "e.jsonl", place / "i"),
    "verify": lambda place: rollouts.verify(place / "r"),
}
peaks = []
for run, count in enumerate((4, 4, 32)):  # the first time imports and caches, too
    place = Path(sys.argv[1], str(run))
    rollouts.write(place / "r", (stored_group(i, longest=200) for i in range(count)), writer="w")
    peaks.append({})
    for name, step in STEPS.items():
        tracemalloc.start()
        step(place)
        peaks[-1][name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
print(json.dumps(peaks[1:]))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_folder(tmp_path):
    """Peak of Python's and NumPy's memory in a copy, an export, an import and a check: eight
    times the data, about the same peak. In a process of its own: what earlier tests left in
    threads allocates too.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    small, large = json.loads(done.stdout)
    for name, peak in large.items():
        assert peak < small[name] + 600_000, (name, small, large)
