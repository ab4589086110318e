"""One configuration under several algorithms and regimes: what is run, kept and told; training itself is a stand-in but in the last test."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from grre_jax.config import EvaluationConfig, ObjectiveConfig
from grre_jax.errors import UsageError
from grre_jax.studies import compare_study
from grre_jax.studies.entrants import NARROW, REINFORCE
from grre_jax.training.regime import Regime


def compare(config, output, **options):
    return compare_study.run(config, output, console=Console(file=io.StringIO(), width=200), **options)


@pytest.fixture
def trained(monkeypatch):
    """Configurations that were trained, by a stand-in that leaves a run's curves: REINFORCE falls to 0.1 where data is stale, all else rises to 0.9."""
    found = []

    def train(config, *, resume, overwrite, console):
        found.append((config, resume, overwrite))
        folder = Path(config.run_dir)
        (folder / "checkpoints" / "8").mkdir(parents=True, exist_ok=True)
        falls = config.objective.name == "reinforce" and config.regime != Regime()
        rows = [
            {"kind": "eval", "step": step, "accuracy": accuracy, "kl_to_start": 0.1, "response_length": 2.0}
            for step, accuracy in zip((0, 4, 8), (0.4, 0.6, 0.1 if falls else 0.9), strict=True)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"kind": "train", "step": 1}, *rows]))
        return folder

    monkeypatch.setattr(compare_study.loop, "train", train)
    return found


def test_every_cell_is_trained_once_and_told(make_config, tmp_path, trained):
    config, output = make_config(tmp_path / "unused"), tmp_path / "out"
    found = compare(config, output, regimes=["on-policy", "sync 3"], seeds=2)
    assert len(trained) == 6 * 2 * 2 and len({one.run_dir for one, *_ in trained}) == 24
    assert {(one.seed, one.regime.sync_interval) for one, *_ in trained} == {(0, 1), (0, 3), (1, 1), (1, 3)}
    wide = [one.objective for one, *_ in trained if one.objective.options.get("epsilon_high") == 2.0]
    assert wide == [ObjectiveConfig("rec_oneside_nois", {"epsilon_low": 0.6, "epsilon_high": 2.0})] * 4
    assert not any((Path(one.run_dir) / "checkpoints").exists() for one, *_ in trained)  # they are large
    ends = {(cell["regime"], cell["algorithm"]): [curve[-1] for curve in cell["accuracy"]] for cell in found["cells"]}
    assert ends["sync 3", REINFORCE] == [0.1, 0.1] and ends["on-policy", REINFORCE] == ends["sync 3", NARROW] == [0.9, 0.9]
    text = (output / "compare.md").read_text()
    assert f"| sync 3 | {REINFORCE} | 0.400 | 0.350 | 0.100 (" in text and json.loads((output / "compare.json").read_text()) == found
    assert (output / "compare.png").read_bytes().startswith(b"\x89PNG")
    again = compare(config, output, regimes=["on-policy", "sync 3"], seeds=2)
    assert len(trained) == 24 and again == found


def test_a_run_that_was_killed_goes_on_from_its_checkpoint(make_config, tmp_path, trained, monkeypatch):
    config, output = make_config(tmp_path / "unused"), tmp_path / "out"
    compare(config, output, regimes=["offline"], only=[NARROW])
    (output / "runs.jsonl").unlink()
    monkeypatch.setattr(compare_study, "listed", lambda folder: [4])
    compare(config, output, regimes=["offline"], only=[NARROW])
    assert [options for _, *options in trained] == [[False, True], [True, False]]  # resume, overwrite


def test_a_loss_of_ones_own_takes_part_beside_those_that_are_named(make_config, tmp_path, trained):
    own = tmp_path / "own.py"
    own.write_text("def plain(x):\n    return -x.advantages * x.logprobs\n")
    found = compare(make_config(tmp_path / "unused"), tmp_path / "out", regimes=["offline"], only=[NARROW], algorithms=[f"{own}:plain"])
    assert [cell["algorithm"] for cell in found["cells"]] == [NARROW, "plain"] and len(trained) == 2


@pytest.mark.parametrize("name", ["sync", "sync 0", "sync x", "faster 3", "off-policy", "sync 3 4"])
def test_a_regime_that_is_none_is_refused(name):
    with pytest.raises(UsageError, match="say on-policy, offline, or one of"):
        compare_study.regime_of(name)


def test_regimes_by_name():
    names = {
        "on-policy": Regime(),
        "offline": Regime(offline=True),
        "sync 20": Regime(sync_interval=20),
        "offset 10": Regime(sync_offset=10),
    }
    names |= {"staleness 8": Regime(staleness=8), "reuse 4": Regime(reuse=4)}
    assert {name: compare_study.regime_of(name) for name in names} == names


def test_what_cannot_be_compared_is_refused(make_config, tmp_path, trained):
    config = make_config(tmp_path / "unused")
    for fields, options, message in (
        ({"evaluation": EvaluationConfig(every=0, questions=4)}, {}, "set --evaluation.every and --evaluation.questions"),
        ({}, {"only": ["Nobody"]}, "--only 'Nobody' is no algorithm of the comparison"),
        ({}, {"seeds": 0}, "--seeds 0"),
    ):
        with pytest.raises(UsageError, match=message):
            compare(make_config(tmp_path / "unused", **fields), tmp_path / "out", **options)
    compare(config, tmp_path / "kept", regimes=["offline"], only=[NARROW])
    with pytest.raises(UsageError, match="holds runs of another configuration"):
        compare(make_config(tmp_path / "unused", name="other"), tmp_path / "kept", regimes=["offline"], only=[NARROW])
    assert len(trained) == 1


@pytest.mark.slow
def test_it_is_grre_train(make_config, tmp_path):
    found = compare(make_config(tmp_path / "unused"), tmp_path / "out", regimes=["on-policy", "sync 3"], only=[NARROW, REINFORCE])
    assert all(len(cell["accuracy"][0]) == 3 and cell["step"] == [[0, 4, 8]] for cell in found["cells"])
    starts = {cell["accuracy"][0][0] for cell in found["cells"]}
    assert len(found["cells"]) == 4 and len(starts) == 1  # one warm start for all
