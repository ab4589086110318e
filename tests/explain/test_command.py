"""`grre explain` as a person types it."""

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


def test_a_stale_run_with_replay(explain):
    fields = "--regime.sync-interval 1 --regime.staleness 4 --regime.replay-ratio 0.25"
    found = explain(DEFAULT, "--training.steps", "50", *fields.split())
    assert "arithmetic: 50 steps, staleness 4, 25% replayed" in found
    assert "16 groups of 8 completions: 12 fresh, 4 replayed, 0 stored" in found
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in found.splitlines()]
    assert ["0", "0 to 4", "0 to 4", "0 to 4"] in rows and ["45", "49", "49", "4"] in rows


def test_from_when_on_clipping_acts(explain):
    fields = "--regime.sync-interval 4 --objective.name grpo".split()
    assert "can act from step 1 on" in " ".join(explain(DEFAULT, *fields).split())


def test_mixed_and_stored_data(explain, tmp_path):
    mix = ("--data.mix", f"{tmp_path}=0.25:expert", "--objective.name", "chord")
    assert "12 fresh, 0 replayed, 4 stored" in explain(DEFAULT, *mix)
    path = ("--data.path", str(tmp_path), "--objective.name", "grpo")
    stored = explain(DEFAULT, *path)
    assert "16 stored" in stored and "versions sample" not in stored


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_is_explained(explain, path):
    assert "sees" in explain(str(path), "--training.steps", "2")
