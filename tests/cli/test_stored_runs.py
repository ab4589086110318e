"""Commands on a run in an object store."""

import pytest

from grre_jax.cli import entry

ROW = '{"step": 1, "kind": "train", "time": 1.0, "elapsed": 1.0, "reward": 0.5}\n'


@pytest.fixture
def run(store):
    store.files.pipe_file(f"{store.bucket}/runs/a/metrics.jsonl", ROW.encode())
    return f"s3://{store.bucket}/runs/a"


def test_a_report_goes_where_the_run_is(run, store, tmp_path):
    """One of several has no such place: it needs an output."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "metrics.jsonl").write_text(ROW)
    assert entry.main(["report", str(tmp_path / "b"), run]) == 2
    assert entry.main(["report", str(tmp_path / "b"), run, "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "summary.json").is_file()
    assert store.files.find(f"{store.bucket}/runs") == [f"{store.bucket}/runs/a/metrics.jsonl"]
    assert entry.main(["report", run]) == 0
    names = {name.partition("/runs/a/")[2] for name in store.files.find(f"{store.bucket}/runs")}
    assert {"summary.json", "report.html", "plots/overview.png"} <= names


def test_a_url_without_a_run_is_refused(store, capsys):
    url = f"s3://{store.bucket}/none"
    for words in (["evaluate", url], ["export", url, "out"]):
        assert entry.main(words) == 1
        assert "none" in capsys.readouterr().err
