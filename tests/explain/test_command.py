"""`grre explain` as a person types it."""

import json
from pathlib import Path

import pytest

from grre_jax.cli.entry import main

CONFIGS = Path(__file__).parents[2] / "configs"
DEFAULT = str(CONFIGS / "arithmetic.py")
SHIPPED = sorted(path for path in CONFIGS.rglob("*.py") if "_setting" not in path.stem)


@pytest.fixture
def explain(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words):
        assert main(["explain", *words]) == 0
        return capsys.readouterr().out

    return run


def test_json_of_a_stale_run_with_replay(explain):
    fields = "--regime.sync-interval 1 --regime.staleness 4 --regime.replay-ratio 0.25"
    report = json.loads(explain(DEFAULT, "--json", "--steps", "50", *fields.split()))
    assert report["run"] == {"name": "arithmetic", "steps": 50, "data": "staleness 4, 25% replayed"}
    rows = [(row["version"], tuple(row["steps"])) for row in report["rows"]]
    assert rows == [(0, (0, 4)), *((step - 4, (step, step)) for step in range(5, 50))]
    sizes = {"groups": 16, "completions": 8, "fresh": 12, "replayed": 4, "stored": 0}
    assert report["step"] == sizes
    assert sum(report["ages"].values()) == 50 * 16 and report["ages"]["4"] >= 46 * 12


def test_whether_clipping_acts_does_not_depend_on_the_steps_that_are_explained(explain):
    fields = "--regime.sync-interval 4 --objective.name grpo".split()
    one, whole = (
        json.loads(explain(DEFAULT, "--json", *words, *fields))["objective"]["clipping"]
        for words in (("--steps", "1"), ())
    )
    assert one == whole and "can act from step 1 on" in one


def test_what_a_cluster_places(explain):
    words = (
        "--cluster.address auto --cluster.explorers.most 8 --cluster.explorers.accelerators 1"
        " --cluster.judges 3"
    ).split()
    assert json.loads(explain(DEFAULT, "--json", *words))["placed"] == [
        {"kind": "explorer", "least": 1, "most": 8, "each": {"CPU": 1, "GPU": 1}},
        {"kind": "judge", "least": 3, "most": 3, "each": {"CPU": 1}},
    ]
    assert "1 CPU, 1 GPU" in explain(DEFAULT, *words)


def test_mixed_and_stored_data(explain, tmp_path):
    mix = ("--data.mix", f"{tmp_path}=0.25:expert", "--objective.name", "chord")
    mixed = json.loads(explain(DEFAULT, "--json", *mix))
    assert (mixed["step"]["fresh"], mixed["step"]["stored"]) == (12, 4)
    path = ("--data.path", str(tmp_path), "--objective.name", "grpo")
    stored = json.loads(explain(DEFAULT, "--json", *path))
    assert stored["rows"] == [] and stored["step"]["stored"] == 16


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_is_explained(explain, path):
    report = json.loads(explain(str(path), "--json", "--steps", "2"))
    assert report["rows"] or report["step"]["stored"]
