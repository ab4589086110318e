"""One configuration under several algorithms and regimes: what is run, kept and told; training
itself is a stand-in but in the last test.
"""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from grre_jax.config import EvaluationConfig, ModelSource, ObjectiveConfig, Regime, WarmStartConfig
from grre_jax.errors import DataError, UsageError
from grre_jax.reporting import MetricsLog
from grre_jax.training import policies
from grre_jax.training.runtime.delayed_metrics import Diverged
from research.compare import report as compare_report
from research.compare import start, study
from research.entrants import GRPO, NARROW, REINFORCE
from research.statistics import estimate


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
    assert {(one.seed, one.regime.sync_interval) for one, *_ in trained} == {
        (0, 1),
        (0, 3),
        (1, 1),
        (1, 3),
    }
    wide = [
        one.objective for one, *_ in trained if one.objective.options.get("epsilon_high") == 2.0
    ]
    assert (
        wide == [ObjectiveConfig("rec_oneside_nois", {"epsilon_low": 0.6, "epsilon_high": 2.0})] * 4
    )
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


def test_with_several_seeds_the_table_has_intervals_over_seeds_and_paired_differences(
    make_config, tmp_path, trained
):
    compare(
        make_config(tmp_path / "unused"),
        tmp_path / "out",
        regimes=["sync 3"],
        only=[REINFORCE, NARROW],
        seeds=3,
    )
    text = (tmp_path / "out" / "compare.md").read_text()
    rows = {
        row.split(" | ")[1]: row.split(" | ")
        for row in text.splitlines()
        if row.startswith("| sync 3")
    }
    for place, values, form in ((4, [0.9, 0.91, 0.92], ".3f"), (6, [0.8, 0.81, 0.82], "+.3f")):
        found = estimate(np.array(values))
        assert (
            rows[NARROW][place]
            == f"{found.mean:{form}} ({found.low:{form}} to {found.high:{form}})"
        )
    assert rows[REINFORCE][5:7] == ["–", "–"] and rows[REINFORCE][4] == "0.100 (0.100 to 0.100)"
    assert "intervals over seeds" in text and "Wilson" not in text


def test_with_one_seed_the_table_says_that_its_interval_is_too_short(
    make_config, tmp_path, trained
):
    compare(
        make_config(tmp_path / "unused"), tmp_path / "out", regimes=["sync 3"], only=[REINFORCE]
    )
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "| sync 3 | REINFORCE | 0.400 | 0.350 | 0.100 (0.050 to 0.150) | 1.000 | 1.000 |" in text
    assert "too short" in text and "nats a token" in text


def test_the_table_and_the_figure_follow_from_the_json_alone(make_config, tmp_path, trained):
    config, output = make_config(tmp_path / "unused"), tmp_path / "out"
    found = compare(config, output, regimes=["sync 3"], only=[NARROW])
    assert (
        found["configuration"]["training"]["steps"] == 8
        and found["regimes"]["sync 3"]["sync_interval"] == 3
    )
    assert not {"run_dir", "seed", "objective", "regime"} & {*found["configuration"]}
    assert found["algorithms"][NARROW]["name"] == "rec_oneside_nois"
    drawn = {name: (output / name).read_bytes() for name in ("compare.md", "compare.png")}
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "compare.json").write_bytes((output / "compare.json").read_bytes())
    compare_report.redraw(alone)
    assert {name: (alone / name).read_bytes() for name in drawn} == drawn
    (alone / "compare.json").write_text("{")
    with pytest.raises(DataError, match="compare.json cannot be read"):
        compare_report.redraw(alone)


def test_results_of_a_version_without_greedy_accuracy_are_drawn(make_config, tmp_path, trained):
    config, output = make_config(tmp_path / "unused"), tmp_path / "out"
    found = compare(config, output, regimes=["sync 3"], only=[NARROW])
    assert found["cells"][0]["greedy_accuracy"] == [[1.0, 1.0, 1.0]]
    del found["cells"][0]["greedy_accuracy"], found["configuration"]["evaluation"]["greedy"]
    assert "greedy, at the end" in (output / "compare.md").read_text()
    (output / "compare.json").write_text(json.dumps(found))
    compare_report.redraw(output)
    assert "greedy" not in (output / "compare.md").read_text()


def test_the_results_name_every_machine_that_computed_them(
    make_config, tmp_path, trained, monkeypatch
):
    config = make_config(tmp_path / "unused")
    for machine, label in (
        ("a", NARROW),
        ("b", REINFORCE),
        ("c", REINFORCE),
    ):  # on c nothing is left to be done
        monkeypatch.setattr(study, "machine_line", lambda machine=machine: machine)
        found = compare(config, tmp_path / "out", regimes=["offline"], only=[label])
    assert found["machines"] == ["a", "b"] and found["version"]


def test_a_run_that_diverges_is_a_result_and_the_others_go_on(
    make_config, tmp_path, trained, monkeypatch
):
    plain = study.loop.train

    def train(config, **options):
        folder = plain(config, **options)
        if config.objective.name != "grpo":
            return folder
        if config.regime.offline:
            leave_curves(folder, (0.4, 0.5), steps=6)
            raise Diverged("train step 6: the loss is nan")
        leave_curves(folder, (0.4,), steps=2)
        raise DataError(
            "Group '2:0:2': field behavior_logprobs is wrong (nan); log-probabilities of generated"
            " tokens are finite and at most 0."
        )

    monkeypatch.setattr(study.loop, "train", train)
    config, output = make_config(tmp_path / "unused"), tmp_path / "out"
    found = compare(config, output, regimes=["on-policy", "offline"], only=[GRPO, NARROW])
    cells = {(cell["regime"], cell["algorithm"]): cell for cell in found["cells"]}
    first, second = cells["on-policy", GRPO], cells["offline", GRPO]
    assert (
        first["diverged"] == [2]
        and first["step"] == [[0, 4, 8]]
        and first["accuracy"] == [[0.4, None, None]]
    )
    assert (
        second["diverged"] == [6]
        and second["accuracy"] == [[0.4, 0.5, None]]
        and second["kl"] == [[0.1, 0.1, None]]
    )
    assert cells["offline", NARROW]["diverged"] == [None] and len(trained) == 4
    text = (output / "compare.md").read_text()
    assert (
        "| on-policy | GRPO | 0.400 | – | diverged at step 2 | 1.000 | – | – | – | – |" in text
        and "nan" not in text
    )
    assert (
        compare(config, output, regimes=["on-policy", "offline"], only=[GRPO, NARROW]) == found
        and len(trained) == 4
    )


@pytest.mark.parametrize(
    ("error", "steps"),
    [(DataError("shard 3 is damaged"), 3), (Diverged("warm start step 2: the loss is nan"), 0)],
)
def test_another_error_of_a_run_ends_the_comparison(
    make_config, tmp_path, monkeypatch, error, steps
):
    def train(config, **_):
        leave_curves(Path(config.run_dir), (), steps)
        raise error

    monkeypatch.setattr(study.loop, "train", train)
    with pytest.raises(DataError, match=str(error)):
        compare(make_config(tmp_path / "unused"), tmp_path / "out", only=[NARROW])
    assert not (tmp_path / "out" / "runs.jsonl").exists()


@pytest.fixture
def pretrained(make_config, tmp_path):
    return make_config(
        tmp_path / "unused",
        model=ModelSource(path=str(tmp_path / "model")),
        warm_start=WarmStartConfig(),
    )


def test_a_pretrained_start_is_measured_once_and_is_that_of_every_run(
    pretrained, tiny_run, tmp_path, trained, monkeypatch
):
    policies.export(tiny_run, tmp_path / "model", 0)
    given, plain = [], study.loop.train

    def train(config, *, start_scores, **options):
        given.append(start_scores)
        return plain(config, start_scores=start_scores, **options)

    monkeypatch.setattr(study.loop, "train", train)
    options = {"regimes": ["offline"], "only": [NARROW, REINFORCE], "greedy_bound": 1}
    found = compare(pretrained, tmp_path / "out", **options)["start"]
    scores, answers = found["scores"], 12 * 8
    assert given == [scores] * 2 and scores["kl_to_start"] == 0
    assert found["samples"] == 8 and (scores["accuracy"] * answers).is_integer()
    assert scores["accuracy"] < found["pass_at_8"] <= 1 and 0 <= found["cut_off"] <= 1
    monkeypatch.setattr(start, "_measured", None)
    compare(pretrained, tmp_path / "out", **options | {"seeds": 2})
    assert given == [scores] * 4
    text = (tmp_path / "out" / "compare.md").read_text()
    assert f"measured once: greedy accuracy {scores['greedy_accuracy']:.3f}" in text
    (tmp_path / "out" / "start.json").write_text("{")
    with pytest.raises(DataError, match="start.json cannot be read"):
        compare(pretrained, tmp_path / "out", **options)


def test_a_start_that_has_solved_the_task_stops_the_comparison(pretrained, tmp_path, trained):
    (tmp_path / "out").mkdir()
    scores = {"greedy_accuracy": 0.65, "accuracy": 0.12, "response_length": 9.0}
    found = {"scores": scores, "samples": 8, "pass_at_8": 0.7, "cut_off": 0.0}
    (tmp_path / "out" / "start.json").write_text(json.dumps(found))
    options = {"regimes": ["offline"], "only": [NARROW]}
    with pytest.raises(UsageError, match="greedy accuracy 0.650 .* over the bound of 0.4"):
        compare(pretrained, tmp_path / "out", **options)
    assert not trained and not (tmp_path / "out" / "compare.json").exists()
    with pytest.raises(UsageError, match="greedy_bound=2 is no probability"):
        compare(pretrained, tmp_path / "out", **options, greedy_bound=2)
    assert compare(pretrained, tmp_path / "out", **options, greedy_bound=0.65)["start"] == found
    assert len(trained) == 1


def test_a_loss_that_was_edited_is_another_one(make_config, tmp_path, trained):
    own, config, output = tmp_path / "own.py", make_config(tmp_path / "unused"), tmp_path / "out"
    given = {"regimes": ["offline"], "only": [NARROW], "algorithms": [f"{own}:plain"]}
    own.write_text("def plain(x):\n    return -x.advantages * x.logprobs\n")
    compare(config, output, **given)
    own.write_text("def plain(x):\n    return -x.advantages * x.logprobs * 2\n")
    with pytest.raises(
        UsageError, match="holds runs of another 'plain' .its file was edited since"
    ):
        compare(config, output, **given)
    (output / "runs.jsonl").write_text(
        ""
    )  # it had no finished run, and what it began is another loss's
    compare(config, output, **given)
    folders = {one.run_dir for one, *_ in trained if one.objective.name == f"{own}:plain"}
    assert len(folders) == 2 and len(trained) == 4


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


def test_labels_are_known_in_any_case_and_once(make_config, tmp_path, trained):
    found = compare(
        make_config(tmp_path / "unused"),
        tmp_path / "out",
        regimes=["offline"],
        only=["reinforce", NARROW.upper(), REINFORCE],
    )
    assert [cell["algorithm"] for cell in found["cells"]] == [REINFORCE, NARROW]


def test_algorithms_that_are_spelt_alike_are_told_apart(make_config, tmp_path, trained):
    own = tmp_path / "own.py"
    own.write_text("def mine(x, *, width):\n    return -x.advantages * x.logprobs * width\n")
    further = ["grpo", f"{own}:mine(width=0.3)", f"{own}:mine(width=-0.3)"]
    found = compare(
        make_config(tmp_path / "unused"),
        tmp_path / "out",
        regimes=["offline"],
        only=["grpo", "Grpo", GRPO],
        algorithms=further,
    )
    assert [cell["algorithm"] for cell in found["cells"]] == [
        "grpo",
        GRPO,
        "mine, width 0.3",
        "mine, width -0.3",
    ]
    assert len({one.run_dir for one, *_ in trained}) == 4


def test_the_time_that_is_left_is_told_after_a_run(make_config, tmp_path, trained):
    said = io.StringIO()
    options = {
        "regimes": ["offline"],
        "only": [NARROW, REINFORCE],
        "console": Console(file=said, width=200),
    }
    study.run(make_config(tmp_path / "unused"), tmp_path / "out", **options)
    assert "a run takes 0s, 1 to go, 0s" in said.getvalue() and "0 to go" in said.getvalue()


def test_settings_that_cannot_be_read_are_named(make_config, tmp_path, trained):
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(DataError, match="settings.json cannot be read"):
        compare(make_config(tmp_path / "unused"), tmp_path, regimes=["offline"], only=[NARROW])


def test_a_loss_of_ones_own_takes_part_beside_those_that_are_named(make_config, tmp_path, trained):
    own = tmp_path / "own.py"
    own.write_text("def plain(x):\n    return -x.advantages * x.logprobs\n")
    found = compare(
        make_config(tmp_path / "unused"),
        tmp_path / "out",
        regimes=["offline"],
        only=[NARROW],
        algorithms=[f"{own}:plain"],
    )
    assert [cell["algorithm"] for cell in found["cells"]] == [NARROW, "plain"] and len(trained) == 2


@pytest.mark.parametrize("name", ["sync", "sync 0", "sync x", "faster 3", "off-policy", "sync 3 4"])
def test_a_regime_that_is_none_is_refused(name):
    with pytest.raises(UsageError, match="say on-policy, offline, or one of"):
        study.regime_of(name)


def test_regimes_by_name():
    names = {
        "on-policy": Regime(),
        "offline": Regime(offline=True),
        "sync 20": Regime(sync_interval=20),
        "offset 10": Regime(sync_offset=10),
    }
    names |= {"staleness 8": Regime(staleness=8), "reuse 4": Regime(reuse=4)}
    assert {name: study.regime_of(name) for name in names} == names


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
        ({}, {"only": ["reinforcer"]}, "did you mean 'REINFORCE'?"),
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
        regimes=["on-policy", "sync 3"],
        only=[NARROW, REINFORCE],
    )
    assert all(
        len(cell["accuracy"][0]) == 3 and cell["step"] == [[0, 4, 8]] for cell in found["cells"]
    )
    starts = {cell["accuracy"][0][0] for cell in found["cells"]}
    assert len(found["cells"]) == 4 and len(starts) == 1  # one warm start for all
