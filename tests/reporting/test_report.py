import io
import json

import pytest
from rich.console import Console

from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.metrics import MetricsLog
from grre_jax.reporting.run_report import default_output, report, run_names


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=120)


@pytest.mark.slow
def test_one_run_is_redrawn_in_its_own_folder(make_run, console):
    folder = make_run("run", steps=20)
    first = report(folder, console=console)
    again = report([folder, folder], console=console)  # twice the same run is that run
    assert first.folder == folder and again.plots == first.plots
    assert (folder / "plots" / "overview.png").is_file() and len(first.plots) == 7
    (run,) = json.loads((folder / "summary.json").read_text())["runs"]
    assert run["name"] == "run"
    assert run["steps"] == 20
    assert run["accuracy"][-1]["step"] == 20
    assert str(folder / "report.html") in console.file.getvalue()


@pytest.mark.slow
def test_several_runs_are_overlaid_beside_the_first(make_run, console, tmp_path):
    a, b = make_run("a", steps=20), make_run("b", steps=30, without=("entropy",))
    made = report([a, b], console=console)
    assert made.folder.name == "a-vs-b" and made.folder.parent == tmp_path.resolve()
    assert [summary.name for summary in made.summaries] == ["a", "b"]
    assert (
        not (a / "summary.json").exists() and not (a / "plots").exists()
    )  # the runs' own folders stay as they were
    assert report([a, b], console=console).folder == made.folder


def test_output_is_never_another_runs_folder_or_a_file(make_run, console, tmp_path):
    a, b, c = (make_run(name, steps=4, every=2) for name in "abc")
    files = report([a, b], tmp_path / "out", console=console)
    assert files.summary_path == tmp_path / "out" / "summary.json"
    for output in (c, a / "metrics.jsonl"):
        before = sorted(output.parent.rglob("*"))
        with pytest.raises(UsageError, match="--output"):
            report([a, b], output, console=console)
        assert sorted(output.parent.rglob("*")) == before


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


def test_the_folder_of_a_comparison_has_a_name_of_bearable_length(tmp_path):
    folders = [tmp_path / f"a_rather_long_name_of_a_run_{i}" for i in range(4)]
    assert default_output(folders).name == "a_rather_long_name_of_a_run_0-vs-3-others"
    twins = [tmp_path / "lr1" / "run", tmp_path / "lr2" / "run"]
    assert default_output(twins) == tmp_path / "lr1" / "lr1-run-vs-lr2-run"
