import json
import math
import os
import signal
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.metrics import MetricsLog, plain_number, read_metrics, series


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_read_back_by_kind_in_order(tmp_path):
    with MetricsLog(tmp_path / "run") as log:
        written = [
            log.write("train", 1, {"reward": 0.5}),
            log.write("eval", 1, {"accuracy": 1}),
            log.write("train", 2, {"reward": 0.75}),
        ]
    metrics = read_metrics(tmp_path / "run")
    assert metrics == {"train": [written[0], written[2]], "eval": [written[1]]}
    assert metrics["train"][0]["step"] == 1
    assert metrics["train"][0]["kind"] == "train"
    assert metrics["train"][0]["time"] > 1e9


def test_nan_and_infinity_are_valid_json_and_come_back(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(
            "train",
            1,
            {"loss": float("nan"), "up": float("inf"), "down": np.float32("-inf"), "fine": 1.5},
        )

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert row["loss"] is None and row["up"] is None and row["fine"] == 1.5
    assert row["not_finite"] == {"loss": "nan", "up": "inf", "down": "-inf"}
    back = read_metrics(tmp_path)["train"][0]
    assert math.isnan(back["loss"]) and back["up"] == math.inf and back["down"] == -math.inf
    assert "not_finite" not in back


@pytest.mark.parametrize(
    "value, expected",
    [
        (3, 3),
        (True, 1),
        (np.int64(7), 7),
        (np.float32(0.1), 0.1),
        (jnp.float32(0.1), 0.1),
        (jnp.int32(4), 4),
        (jnp.bfloat16(0.5), 0.5),
        (np.array([2.5]), 2.5),
        (0.1, 0.1),
    ],
)
def test_scalars_become_plain_numbers(value, expected):
    number = plain_number("x", value)
    assert number == expected and type(number) is type(expected)


@pytest.mark.parametrize("value", ["0.5", None, np.zeros(2), 1j, {"a": 1}])
def test_what_is_not_one_number_is_refused_by_name(tmp_path, value):
    with MetricsLog(tmp_path) as log, pytest.raises(ValueError, match="'reward'"):
        log.write("train", 1, {"reward": value})
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_fields_every_row_has_cannot_be_scalars(tmp_path):
    with MetricsLog(tmp_path) as log, pytest.raises(ValueError, match="'step'"):
        log.write("train", 1, {"step": 3})


def test_a_log_that_has_rows_is_not_appended_to_by_a_new_run(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write("train", 1, {})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match="metrics.jsonl already holds"):
        MetricsLog(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_resume_moves_the_killed_runs_future_aside(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write("warm_start", 900, {"loss": 0.0})
        for step in range(1, 6):
            log.write("train", step, {"reward": float(step)})
        log.write("eval", 3, {"accuracy": 0.3})
        log.write("eval", 5, {"accuracy": 0.5})
    with MetricsLog(tmp_path, {"train": 3, "eval": 3}) as log:
        log.write("train", 4, {"reward": 40.0})
    metrics = read_metrics(tmp_path)
    assert [row["reward"] for row in metrics["train"]] == [1.0, 2.0, 3.0, 40.0]
    assert [row["step"] for row in metrics["eval"]] == [3]
    assert [row["step"] for row in metrics["warm_start"]] == [
        900
    ]  # its steps are counted by themselves
    moved = lines(tmp_path / "metrics.superseded.jsonl")
    assert [(row["kind"], row["step"]) for row in moved] == [
        ("train", 4),
        ("train", 5),
        ("eval", 5),
    ]


def test_rows_moved_just_before_a_kill_are_not_moved_twice(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write("train", 1, {})
        log.write("train", 2, {})
    last = (tmp_path / "metrics.jsonl").read_text().splitlines()[-1]
    (tmp_path / "metrics.superseded.jsonl").write_text(
        last + "\n"
    )  # written, and then killed before the log was shortened
    MetricsLog(tmp_path, {"train": 1}).close()
    assert len(lines(tmp_path / "metrics.superseded.jsonl")) == 1


def test_elapsed_counts_running_time_over_a_resume(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write("train", 1, {})
    row = json.loads((tmp_path / "metrics.jsonl").read_text()) | {"elapsed": 100.0, "time": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    with MetricsLog(tmp_path, {"train": 1}) as log:
        assert 100.0 <= log.write("train", 2, {})["elapsed"] < 160.0


@pytest.mark.parametrize("torn", ['{"step": 3, "kind": "tra', '{"step": 3, "ki', "{"])
def test_a_torn_last_line_is_tolerated_and_kept_aside_on_resume(tmp_path, torn):
    with MetricsLog(tmp_path) as log:
        log.write("train", 1, {})
        log.write("train", 2, {})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(torn)
    assert [row["step"] for row in read_metrics(tmp_path)["train"]] == [1, 2]
    with MetricsLog(tmp_path, {"train": 2}) as log:
        log.write("train", 3, {})
    assert [row["step"] for row in read_metrics(tmp_path)["train"]] == [1, 2, 3]
    assert lines(tmp_path / "metrics.superseded.jsonl") == [{"torn": torn}]


@pytest.mark.parametrize(
    "line, reason",
    [
        ("not json", "this is no JSON"),
        ("[1]", "must be an object, got"),
        ('{"kind": "train"}', "field step must be"),
        ('{"step": 1.5, "kind": "train"}', "field step must be"),
        ('{"step": 1}', "field kind must be"),
        ('{"step": 1, "kind": "train", "reward": "high"}', "field reward must be"),
        ('{"step": 1, "kind": "train", "not_finite": 3}', "field not_finite must be"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, reason):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "kind": "train"}\n' + line + "\n" + '{"step": 2, "kind": "train"}\n'
    )
    with pytest.raises(DataError, match=rf"metrics\.jsonl, line 2: .*{reason}"):
        read_metrics(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(DataError, match="line 2"):
        MetricsLog(tmp_path, {"train": 1})
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_missing_folder_and_missing_log_are_told_apart(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        read_metrics(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no metrics\.jsonl"):
        read_metrics(tmp_path)


def test_series_is_sorted_and_the_last_row_of_a_step_counts():
    rows = [
        {"step": 2, "a": 2.0},
        {"step": 1, "a": 1.0},
        {"step": 2, "a": 2.5},
        {"step": 3, "b": 0.0},
    ]
    steps, values = series(rows, "a")
    assert steps.tolist() == [1, 2] and values.tolist() == [1.0, 2.5]
    assert all(len(part) == 0 for part in series(rows, "missing"))


def test_a_killed_process_loses_no_written_row(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from grre_jax.reporting.metrics import MetricsLog\n"
        "log = MetricsLog(sys.argv[1])\n"
        "for step in range(1, 51): log.write('train', step, {'reward': 0.5})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert [row["step"] for row in read_metrics(tmp_path)["train"]] == list(range(1, 51))
