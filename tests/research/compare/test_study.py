"""One configuration under several algorithms and regimes: what is run, kept and told; training
itself is a stand-in but in the last test.
"""

import json
from pathlib import Path

import pytest

from grre_jax import rollouts
from grre_jax.config import EvaluationConfig, Regime
from grre_jax.errors import UsageError
from grre_jax.reporting import MetricsLog
from grre_jax.training.metrics import Diverged
from research.compare import study
from research.entrants import NARROW, REINFORCE

from ...run_processes import quiet


def compare(config, output, **options):
    return study.run(config, output, console=quiet(), **options)


def leave_curves(folder, accuracies, steps=8):
    """The files of a run of so many steps, with an evaluation every four."""
    for name in ("checkpoints/8", "rollouts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    with MetricsLog(folder) as log:
        for step in range(1, steps + 1):
            log.write("train", step, {"loss": 0.1})
        for step, accuracy in zip((0, 4, 8), accuracies, strict=False):
            scalars = {"accuracy": accuracy, "greedy_accuracy": 1.0}
            log.write("eval", step, scalars | {"kl_to_start": 0.1, "response_length": 2.0})


@pytest.fixture
def trained(monkeypatch):
    """Configurations that were trained, by a stand-in that leaves a run's curves: REINFORCE
    falls to 0.1 where data is stale, all else rises to 0.9.
    """
    found = []

    def train(config, *, resume, overwrite, console):
        found.append((config, resume, overwrite))
        falls = config.objective.name == "reinforce" and config.regime != Regime()
        leave_curves(Path(config.run_dir), (0.4, 0.6, 0.1 if falls else 0.9 + 0.01 * config.seed))
        return Path(config.run_dir)

    monkeypatch.setattr(study.loop, "train", train)
    return found


def test_every_cell_is_trained_once_and_told(make_config, tmp_path, trained):
    config, output = make_config(tmp_path / "unused"), tmp_path / "out"
    found = compare(config, output, regimes=["on-policy", "sync 3"], seeds=2)
    folders = {Path(one.run_dir) for one, *_ in trained}
    assert len(trained) == len(folders) == 6 * 2 * 2
    for folder in folders:
        assert not (folder / "checkpoints").exists()  # they are large
        assert (folder / "rollouts").exists()  # `grre report` shows completions from them
    ends = {
        (cell["regime"], cell["algorithm"]): [run["accuracy"][-1] for run in cell["runs"]]
        for cell in found["cells"]
    }
    assert ends["sync 3", REINFORCE] == [0.1, 0.1]
    assert ends["on-policy", REINFORCE] == ends["sync 3", NARROW] == [0.9, 0.91]
    assert json.loads((output / "compare.json").read_text()) == found
    assert (output / "compare.png").read_bytes().startswith(b"\x89PNG")
    again = compare(config, output, regimes=["on-policy", "sync 3"], seeds=2)
    assert len(trained) == 24 and again == found


def test_a_run_that_diverges_is_a_result(make_config, tmp_path, trained, monkeypatch):
    train = study.loop.train

    def lost(config, **options):
        train(config, **options)
        if config.objective.name == "reinforce" and config.seed == 1:
            leave_curves(Path(config.run_dir), (0.4, 0.6), steps=6)
            raise Diverged("step 6")

    monkeypatch.setattr(study.loop, "train", lost)
    config, output = make_config(tmp_path / "unused"), tmp_path / "out"
    only = [REINFORCE, NARROW]
    found = compare(config, output, regimes=["on-policy"], only=only, seeds=2)
    first, second = found["cells"]
    assert [run["diverged"] for run in first["runs"]] == [[], [6]]
    assert first["runs"][1]["accuracy"] == [0.4, 0.6] and first["runs"][1]["step"] == [0, 4]
    assert [run["diverged"] for run in second["runs"]] == [[], []]


def test_what_cannot_be_compared_is_refused(make_config, tmp_path, trained):
    seldom = EvaluationConfig(every=0, questions=4)
    kept = {"regimes": ["offline"], "only": [NARROW], "seeds": 2}
    compare(make_config(tmp_path / "unused"), tmp_path / "out", **kept)
    for fields, options, named in (
        ({"evaluation": seldom}, {}, "--evaluation.every"),
        ({}, {"only": ["Nobody"]}, "--only"),
        ({}, {"seeds": 1}, "--seeds"),
        ({"name": "other"}, {}, "settings.json differs in name"),
    ):
        config = make_config(tmp_path / "unused", **fields)
        with pytest.raises(UsageError, match=named):
            compare(config, tmp_path / "out", **kept | options)
    assert len(trained) == 2


def test_it_is_grre_train(make_config, tmp_path):
    options = {"regimes": ["offline"], "only": [NARROW, REINFORCE], "seeds": 2}
    found = compare(make_config(tmp_path / "unused"), tmp_path / "out", **options)
    first, second = (cell["runs"] for cell in found["cells"])
    for run in (*first, *second):
        assert len(run["accuracy"]) == 3 and run["step"] == [0, 4, 8]
    # Algorithms share the warm start of a seed.
    assert [run["accuracy"][0] for run in first] == [run["accuracy"][0] for run in second]
    # Offline, all of a run's data is sampled first.
    for folder in (tmp_path / "out").rglob("rollouts"):
        reader = rollouts.read(folder)
        assert {entry.policy_version for entry in reader.datasets} == {0} and len(reader) == 32
