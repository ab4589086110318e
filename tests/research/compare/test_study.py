"""One configuration under several algorithms and regimes: what is run, kept and told; training
itself is a stand-in but in the last test.
"""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from grre_jax.config import EvaluationConfig, Regime
from grre_jax.errors import UsageError
from grre_jax.reporting import MetricsLog
from research.compare import study
from research.entrants import NARROW, REINFORCE


def compare(config, output, **options):
    return study.run(config, output, console=Console(file=io.StringIO(), width=200), **options)


def leave_curves(folder, accuracies, steps=8):
    """The files of a run of so many steps, with an evaluation every four."""
    for name in ("checkpoints/8", "rollouts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    with MetricsLog(folder) as log:
        for step in range(1, steps + 1):
            log.write("train", step, {"loss": 0.1})
        for step, accuracy in zip((0, 4, 8), accuracies, strict=False):
            scalars = {
                "accuracy": accuracy,
                "accuracy_low": accuracy / 2,
                "accuracy_high": accuracy + 0.05,
                "greedy_accuracy": 1.0,
            }
            log.write("eval", step, scalars | {"kl_to_start": 0.1, "response_length": 2.0})


@pytest.fixture
def trained(monkeypatch):
    """Configurations that were trained, by a stand-in that leaves a run's curves: REINFORCE
    falls to 0.1 where data is stale, all else rises to 0.9.
    """
    found = []

    def train(config, *, resume, overwrite, start_scores, console):
        found.append((config, resume, overwrite))
        falls = config.objective.name == "reinforce" and config.regime != Regime()
        leave_curves(Path(config.run_dir), (0.4, 0.6, 0.1 if falls else 0.9 + 0.01 * config.seed))
        return Path(config.run_dir)

    monkeypatch.setattr(study.loop, "train", train)
    return found


def test_every_cell_is_trained_once_and_told(make_config, tmp_path, trained):
    config, output = make_config(tmp_path / "unused"), tmp_path / "out"
    found = compare(config, output, regimes=["on-policy", "sync 3"], seeds=2)
    assert len(trained) == 6 * 2 * 2 and len({one.run_dir for one, *_ in trained}) == 24
    assert not any(
        (Path(one.run_dir) / "checkpoints").exists() for one, *_ in trained
    )  # they are large
    ends = {
        (cell["regime"], cell["algorithm"]): [curve[-1] for curve in cell["accuracy"]]
        for cell in found["cells"]
    }
    assert ends["sync 3", REINFORCE] == [0.1, 0.1] and ends["on-policy", REINFORCE] == ends[
        "sync 3", NARROW
    ] == [0.9, 0.91]
    assert json.loads((output / "compare.json").read_text()) == found
    assert all(
        (Path(one.run_dir) / "rollouts").exists() for one, *_ in trained
    )  # `grre report` shows completions from them
    assert (output / "compare.png").read_bytes().startswith(b"\x89PNG")
    again = compare(config, output, regimes=["on-policy", "sync 3"], seeds=2)
    assert len(trained) == 24 and again == found


def test_a_run_that_was_killed_goes_on_from_its_checkpoint(
    make_config, tmp_path, trained, monkeypatch
):
    config, output = make_config(tmp_path / "unused"), tmp_path / "out"
    compare(config, output, regimes=["offline"], only=[NARROW])
    (output / "runs.jsonl").unlink()
    monkeypatch.setattr(study, "listed", lambda folder: [4])
    compare(config, output, regimes=["offline"], only=[NARROW])
    assert [options for _, *options in trained] == [
        [False, True],
        [True, False],
    ]  # resume, overwrite


def test_what_cannot_be_compared_is_refused(make_config, tmp_path, trained):
    config = make_config(tmp_path / "unused")
    for fields, options, message in (
        (
            {"evaluation": EvaluationConfig(every=0, questions=4)},
            {},
            "set --evaluation.every and --evaluation.questions",
        ),
        (
            {},
            {"only": ["Nobody"]},
            "--only 'Nobody' is no algorithm of the comparison.*\n  'REINFORCE'\n",
        ),
        ({}, {"seeds": 0}, "--seeds 0"),
    ):
        with pytest.raises(UsageError, match=message):
            compare(make_config(tmp_path / "unused", **fields), tmp_path / "out", **options)
    compare(config, tmp_path / "kept", regimes=["offline"], only=[NARROW])
    with pytest.raises(UsageError, match="another configuration .*settings.json differs in name"):
        compare(
            make_config(tmp_path / "unused", name="other"),
            tmp_path / "kept",
            regimes=["offline"],
            only=[NARROW],
        )
    assert len(trained) == 1


def test_it_is_grre_train(make_config, tmp_path):
    found = compare(
        make_config(tmp_path / "unused"),
        tmp_path / "out",
        regimes=["sync 3"],
        only=[NARROW, REINFORCE],
    )
    assert all(
        len(cell["accuracy"][0]) == 3 and cell["step"] == [[0, 4, 8]] for cell in found["cells"]
    )
    starts = {cell["accuracy"][0][0] for cell in found["cells"]}
    assert len(found["cells"]) == 2 and len(starts) == 1  # one warm start for all
