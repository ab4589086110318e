"""`grre explain` as a person types it."""

import json
from pathlib import Path

import pytest

from grre_jax.cli.entry import main

CONFIGS = Path(__file__).parents[2] / "configs"
DEFAULT = str(CONFIGS / "arithmetic.py")


@pytest.fixture
def explain(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words, status=0):
        assert main(["explain", *words]) == status
        out, err = capsys.readouterr()
        return err if status else out

    return run


def test_the_default_is_shown_in_tables(explain):
    shown = " ".join(explain(DEFAULT).split())
    assert "│ 0 │ 0 to 19 │ 0 to 19 │ 0 to 319 │ 0 to 19 │ 0 │" in shown
    assert "│ 300 │ 300 to 319 │ 300 to 319 │ 4800 to 5119 │ 0 to 19 │ 0 │" in shown
    assert "A = r - mean(r); g = -A grad l M(one-side)" in shown
    assert "Note:" not in shown


def test_the_same_as_json(explain):
    told = json.loads(
        explain(
            DEFAULT,
            "--json",
            "--steps",
            "50",
            "--regime.sync-interval",
            "1",
            "--regime.staleness",
            "4",
            "--regime.replay-ratio",
            "0.25",
        )
    )
    assert told["run"] == {
        "name": "arithmetic",
        "steps": 50,
        "regime": "staleness 4, 25% replayed",
        "samples": True,
        "sampler_devices": 0,
    }
    rows = [(row["version"], tuple(row["steps"])) for row in told["rows"]]
    assert rows == [(0, (0, 4)), *((step - 4, (step, step)) for step in range(5, 50))]
    assert told["step"] == {
        "groups": 16,
        "completions_a_group": 8,
        "fresh": 12,
        "replayed": 4,
        "replay_window": 0,
        "reuse": 1,
        "mix": [],
        "mixed": 0,
    }
    ages = told["staleness"]
    assert sum(ages["fresh"].values()) + sum(ages["replayed"].values()) == 50 * 16
    assert ages["unknown"] == 0
    assert ages["fresh"]["4"] == 46 * 12 and told["sampling_versions"] == 46
    assert told["objective"]["objective"] == "rec_oneside_nois" and told["warnings"] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (32, 1, 1, 0)),
        ("--regime.sync-interval 20", (640, 2, 20, 0)),
        ("--regime.sync-interval 20 --sampling.prompts_per_call 100", (640, 7, 20, 0)),
        ("--regime.sync-offset 10", (32, 1, 1, 10)),
        ("--regime.reuse 4", (32, 1, 4, 0)),
        ("--regime.offline true", (3200, 10, 100, 0)),
    ],
)
def test_the_calls_of_a_version(explain, words, expected):
    sizes = "--training.steps 100 --training.prompts_per_step 32 --regime.sync-interval 1"
    told = json.loads(explain(DEFAULT, "--json", *sizes.split(), *words.split()))
    names = ("positions", "calls", "steps", "ahead")
    assert told["version"] == dict(zip(names, expected, strict=True))


def test_mixed_and_stored_data_are_told(explain, tmp_path):
    mixed = explain(DEFAULT, "--data.mix", f"{tmp_path}=0.25:expert", "--objective.name", "chord")
    assert "12 freshly sampled; 4 mixed in (25%" in mixed.replace("\n", " ")
    assert "unknown (stored)" in mixed
    stored = explain(DEFAULT, "--data.path", str(tmp_path), "--objective.name", "grpo")
    assert "all data is stored already" in stored
    assert "policy versions sample" not in stored
    assert "has no effect" in stored
    long = explain(DEFAULT, "--regime.sync-interval", "7", "--regime.reuse", "4")
    assert "each trained on in 4 consecutive steps" in long.replace("\n", " ")


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--steps", "0"], "--steps takes a number of at least 1, got 0"),
        (["--regime.sync", "2"], "unknown field 'regime.sync'; did you mean --regime.sync_"),
        (["--objective.name", "chord"], "objective chord needs completions of an expert"),
        (["--objective.name", "gdpo"], "--objective.options.components correct,format"),
        (["--regime.replay_ratio", "0.99"], "leaves no fresh one"),
    ],
)
def test_what_cannot_be_is_one_sentence(explain, words, sentence):
    assert sentence in explain(DEFAULT, *words, status=2)


@pytest.mark.parametrize(
    "path",
    sorted(p for p in CONFIGS.rglob("*.py") if "_setting" not in p.stem),
    ids=lambda path: path.stem,
)
def test_every_shipped_configuration_is_explained(explain, path):
    assert (
        "What each version samples" in (told := explain(str(path)))
        or "all data is stored already" in told
    )
