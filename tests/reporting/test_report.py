import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.metrics import MetricsLog
from grre_jax.reporting.run_report import default_output, report, run_names


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=120)


def test_one_run_is_redrawn_in_its_own_folder(make_run, console):
    folder = make_run("run", steps=20)
    first = report(folder, console=console)
    again = report([folder, folder], console=console)  # twice the same run is that run
    assert first.folder == folder and again.plots == first.plots
    assert (folder / "plots" / "overview.png").is_file() and len(first.plots) == 7
    (run,) = json.loads((folder / "summary.json").read_text())["runs"]
    assert run["name"] == "run"
    assert run["steps"] == 20
    assert run["accuracy_best"]["value"] >= run["accuracy_first"]["value"]
    assert "accuracy, best" in console.file.getvalue() and "overview" not in console.file.getvalue()
    assert str(folder / "summary.json") in console.file.getvalue()


def test_several_runs_are_overlaid_beside_the_first(make_run, console, tmp_path):
    a, b = make_run("a", steps=20), make_run("b", steps=30, without=("entropy",))
    made = report([a, b], console=console)
    assert made.folder.name == "a-vs-b" and made.folder.parent == tmp_path.resolve()
    assert [summary.name for summary in made.summaries] == ["a", "b"]
    assert (
        not (a / "summary.json").exists() and not (a / "plots").exists()
    )  # the runs' own folders stay as they were
    assert report([a, b], console=console).folder == made.folder


def test_output_is_respected_and_never_written_over_something_else(make_run, console, tmp_path):
    a, b, c = (make_run(name, steps=4, every=2) for name in "abc")
    made = report([a, b], tmp_path / "out", console=console)
    assert made.summary_path == tmp_path / "out" / "summary.json"
    before = made.summary_path.read_bytes()
    with pytest.raises(UsageError, match="already holds another summary.json"):
        report([a, c], tmp_path / "out", console=console)
    with pytest.raises(UsageError, match="run's own folder"):
        report([a, b], c, console=console)
    with pytest.raises(UsageError, match=r"--output .*metrics\.jsonl is a file: give a folder"):
        report([a, b], a / "metrics.jsonl", console=console)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "plots").touch()
    for output in (
        "/proc/x",
        a / "metrics.jsonl" / "x",
        tmp_path / "taken",
    ):  # no folder can be made there
        with pytest.raises(
            UsageError,
            match=f"--output {output} cannot be written to .*: give another folder with --output",
        ):
            report([a, b], output, console=console)
    assert made.summary_path.read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text("not ours")
    with pytest.raises(UsageError, match="already holds another"):
        report([a, b], tmp_path / "other", console=console)


def test_what_is_missing_is_named_before_anything_is_written(make_run, console, tmp_path):
    run = make_run("run", steps=4, every=2)
    with pytest.raises(DataError, match="gone does not exist.*grre train"):
        report([run, tmp_path / "gone"], console=console)
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match=r"bare has no metrics\.jsonl"):
        report([run, tmp_path / "bare"], console=console)
    MetricsLog(tmp_path / "young").close()
    with pytest.raises(DataError, match=r"young/metrics\.jsonl has no rows yet"):
        report([run, tmp_path / "young"], console=console)
    with pytest.raises(UsageError, match="no run was given"):
        report([], console=console)
    (run / "config.json").write_text('{"name": ')
    with pytest.raises(DataError, match=r"run/config\.json is no JSON .*restore it from a copy"):
        report(run, console=console)
    assert not (run / "plots").exists() and not (run / "summary.json").exists()


def test_names_tell_runs_apart(tmp_path):
    folders = [
        tmp_path / "x" / "lr1" / "run",
        tmp_path / "x" / "lr2" / "run",
        tmp_path / "x" / "other",
    ]
    assert run_names(folders) == ["lr1/run", "lr2/run", "other"]
    assert run_names([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]


def test_default_output_is_the_same_for_the_same_runs(tmp_path):
    folders = [tmp_path / f"a_rather_long_name_of_a_run_{i}" for i in range(4)]
    assert default_output(folders).name.startswith("4-runs-")
    assert default_output(folders) == default_output(folders)
    assert default_output(folders) != default_output(folders[:3] + [tmp_path / "b"])
    assert default_output([tmp_path / "lr1" / "run", tmp_path / "lr2" / "run"]).name.startswith(
        "2-runs-"
    )


def test_importing_reporting_is_light():
    script = (
        "import sys, grre_jax.reporting\nprint([m for m in ('matplotlib', 'rich', 'tensorboardX',"
        " 'wandb', 'tensorflow', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "[]"
