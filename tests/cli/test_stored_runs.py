"""Commands on a run in an object store."""

from grre_jax.cli import entry

ROW = '{"step": 1, "kind": "train", "time": 1.0, "elapsed": 1.0, "reward": 0.5}\n'


def test_a_report_goes_where_the_run_is(store, tmp_path, capsys):
    """One of several has no such place: it needs an output."""
    run = f"s3://{store.bucket}/runs/a"
    store.files.pipe_file(f"{store.bucket}/runs/a/metrics.jsonl", ROW.encode())
    (tmp_path / "metrics.jsonl").write_text(ROW)
    assert entry.main(["report", str(tmp_path), run]) == 2
    assert entry.main(["report", run]) == 0
    names = {name.partition("/runs/a/")[2] for name in store.files.find(f"{store.bucket}/runs")}
    assert {"summary.json", "report.html", "plots/overview.png"} <= names
    assert entry.main(["evaluate", f"s3://{store.bucket}/none"]) == 1
    assert "none" in capsys.readouterr().err
