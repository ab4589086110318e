import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.metrics import MetricsLog, read_metrics


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.jsonl"


def steps(folder, kind="train"):
    return [row["step"] for row in read_metrics(folder).get(kind, [])]


def write(folder, *numbers, resume_steps=None):
    with MetricsLog(folder, resume_steps) as log:
        for step in numbers:
            log.write("train", step, {"reward": float(step)})


def test_nan_and_infinity_are_valid_json_and_come_back(tmp_path, file):
    scalars = {"loss": math.nan, "up": math.inf, "down": np.float32("-inf"), "fine": 1.5}
    with MetricsLog(tmp_path) as log:
        log.write("train", 1, scalars)
    row = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert row["not_finite"] == {"loss": "nan", "up": "inf", "down": "-inf"}
    (back,) = read_metrics(tmp_path)["train"]
    assert {name: back[name] for name in scalars} == pytest.approx(scalars, nan_ok=True)
    assert "not_finite" not in back


def test_what_is_not_one_number_is_refused(tmp_path, file):
    with MetricsLog(tmp_path) as log, pytest.raises((TypeError, ValueError)):
        log.write("train", 1, {"reward": np.zeros(2)})
    assert file.read_text() == ""


def test_a_log_that_has_rows_is_not_appended_to_by_a_new_run(tmp_path):
    write(tmp_path, 1)
    with pytest.raises(UsageError, match=r"metrics\.jsonl"):
        MetricsLog(tmp_path)


def test_resume_removes_the_killed_runs_future(tmp_path):
    rows = [("warm_start", 900), *(("train", step) for step in range(1, 6))]
    with MetricsLog(tmp_path) as log:
        for kind, step in (*rows, ("eval", 3), ("eval", 5)):
            log.write(kind, step, {"reward": 0.0})
    for _ in range(2):  # the second time the rows of another run of the same steps
        write(tmp_path, 4, resume_steps={"train": 3, "eval": 3})
    assert steps(tmp_path) == [1, 2, 3, 4] and steps(tmp_path, "eval") == [3]
    assert steps(tmp_path, "warm_start") == [900]  # its steps are counted by themselves


def test_a_torn_last_line_is_left_out(tmp_path, file):
    write(tmp_path, 1, 2)
    with open(file, "a") as stream:
        stream.write('{"step": 3, "ki')
    assert steps(tmp_path) == [1, 2]
    write(tmp_path, 3, resume_steps={"train": 2})
    assert steps(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"kind": "train"}',
        '{"step": 1, "kind": "train", "a": null, "not_finite": 3}',
    ],
)
def test_a_broken_line_is_named(tmp_path, file, line):
    file.write_text(f'{{"step": 1, "kind": "train"}}\n{line}\n{{"step": 2, "kind": "train"}}\n')
    for act in (read_metrics, lambda folder: MetricsLog(folder, {"train": 1})):
        with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
            act(tmp_path)


def test_a_killed_process_loses_no_written_row(tmp_path):
    script = """
import os, signal, sys
from grre_jax.reporting.metrics import MetricsLog
log = MetricsLog(sys.argv[1])
for step in range(1, 51):
    log.write("train", step, {"reward": 0.5})
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(words, env=environment, check=False).returncode == -signal.SIGKILL
    assert steps(tmp_path) == list(range(1, 51))
