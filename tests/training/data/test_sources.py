"""The folders that a run reads: opened as they were when it began, and their usable groups
selected.
"""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from grre_jax import objectives, rollouts
from grre_jax.errors import DataError
from grre_jax.parallel import processes
from grre_jax.tasks import Question
from grre_jax.training import build
from grre_jax.training.config.overrides import override
from grre_jax.training.data import sources
from grre_jax.training.data.choose import Chooser, read, stored_streams

from ...groups import played_group, text_group


@pytest.fixture(scope="module")
def built(make_config, tmp_path_factory):
    words = "--objective.name reinforce --training.prompts_per_step 2"
    return build.build(make_config(tmp_path_factory.mktemp("data") / "run", words))


@pytest.fixture
def select(built):
    """`select(folder, words)`: the chooser of a run of data.path."""

    def chooser(folder, words="", objective="reinforce", **options):
        config = override(built.config, f"--data.path {folder} {words}".split())
        objective = objectives.algorithm(objective, **options)
        parts = dataclasses.replace(built, config=config, objective=objective)
        return Chooser(None, stored_streams(parts, sources.open_folders(config, resume=False)))

    return chooser


def ids(choose, steps):
    return [group.group_id for step in steps for group in read(choose(step))]


def write(folder, groups, **fields):
    rollouts.write(folder, groups, writer="import", **fields)


# ---- the groups of data.path


@pytest.fixture
def folder(tmp_path):
    groups = [text_group(i) for i in range(6)]
    groups += [text_group(6, rewards=(1, 1)), text_group(7, texts=("1234567$", "3$"))]
    write(tmp_path / "rollouts", groups, metadata={"contains": ["somewhere/test"]})
    return tmp_path / "rollouts"


AGED = "g0 g1 g10 g11 g20 g21 g30 g31".split()


@pytest.fixture
def aged(tmp_path, make_group):
    for version in range(4):
        fields = {"lengths": (2, 3), "rewards": [0, 1 + version], "policy_version": [version] * 2}
        groups = [make_group(10 * version + i, **fields) for i in range(2)]
        write(tmp_path / "aged", groups, policy_version=version)
    return tmp_path / "aged"


@pytest.mark.parametrize("words, count", [("", 6), ("--data.drop_zero_variance false", 7)])
def test_selection(select, folder, words, count):
    chosen = select(folder, f"--data.drop_over_limit true {words}")
    assert set(ids(chosen, range(6))) == {f"g{number}" for number in range(count)}


def test_turns_of_equal_rewards_may_differ(select, tmp_path):
    write(tmp_path, [played_group(number, rewards=[1, 1]) for number in range(2)])
    with pytest.raises(DataError, match=r"2 by data\.drop_zero_variance"):
        select(tmp_path)
    chosen = select(tmp_path, "--sampling.max_new_tokens 8", returns="turns")
    assert {pick.index for pick in chosen(0)} == {0, 1}


def test_what_cannot_be_trained_on_is_named(select, folder, aged, tmp_path, make_group):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "even", [text_group(i, rewards=(1, 1)) for i in range(3)])
    groups = [make_group(i, lengths=(2, 3), rewards=[0, 1]) for i in range(3)]
    write(tmp_path / "mixed", [*groups, text_group(9)])
    write(tmp_path / "ageless", [text_group(0, is_expert=[1, 1]), text_group(1)])
    unjudged = text_group(8, rewards=(np.nan,) * 2, extra={"verify_failures": ["crashed"] * 2})
    write(folder, [unjudged])
    every = r"zero_variance.*data\.drop_over_limit.*verdict"
    for path, words, objective, named in (
        (tmp_path / "even", "", "reinforce", "prompts_per_step"),
        (folder, "--data.drop_over_limit true --training.prompts_per_step 7", "reinforce", every),
        (folder, "", "reinforce", r"group g7 \(q7\) has .*max_new_tokens = 3"),
        (folder, "--data.drop_over_limit true", "grpo", "g0 .*behavior_logprobs"),
        (tmp_path / "mixed", "", "grpo", "g9 .*behavior_logprobs"),
        (tmp_path / "empty", "", "reinforce", "empty"),
        (
            aged,
            "--data.max_staleness 0 --training.prompts_per_step 3",
            "reinforce",
            "max_staleness",
        ),
        (
            folder,
            f"--data.drop_over_limit true --data.mix {tmp_path}/even=0.5",
            "reinforce",
            "drop_zero_v",
        ),
        (tmp_path / "ageless", "--data.max_staleness 3", "reinforce", "g1 .*policy_version"),
    ):
        with pytest.raises(DataError, match=named):
            select(path, words, objective)


def test_a_staleness_window_is_of_the_folders_newest(select, aged):
    assert set(ids(select(aged, "--data.max_staleness 1"), range(2))) == set(AGED[4:])
    # Its newest, whatever is trained on; and an expert's groups have no age.
    write(aged, [text_group(9, rewards=(1, 1), policy_version=[4, 4])], policy_version=4)
    assert set(ids(select(aged, "--data.max_staleness 2"), range(2))) == set(AGED[4:])
    write(aged, [text_group(i, is_expert=[1, 1]) for i in range(2)])
    assert set(ids(select(aged, "--data.max_staleness 1"), range(2))) == {"g30", "g31", "g0", "g1"}


def test_evaluation_questions_that_are_trained_on_are_counted(built, folder, caplog):
    names = [("q0", "?"), ("other", text_group(1).prompt), ("q99", "no")]
    held_out = [Question(name, prompt, "?") for name, prompt in names]
    task = SimpleNamespace(evaluation=lambda count: held_out)
    words = f"--data.path {folder} --data.drop_over_limit true"
    for more, logged in (("", "2 of"), ("--evaluation.allow_contaminated true", "")):
        config = override(built.config, f"{words} {more}".split())
        parts = dataclasses.replace(built, config=config, task=task)
        caplog.clear()
        stored_streams(parts, sources.open_folders(config, resume=False))
        assert logged in caplog.text and bool(logged) == bool(caplog.text)


def test_the_order_can_be_that_of_the_folder(select, aged):
    assert ids(select(aged, "--data.order stored"), range(6)) == AGED + AGED[:4]


# ---- the folders, as they were when the run began


def seal(folder, *numbers, contains="a/train"):
    write(folder, [text_group(i) for i in numbers], metadata={"contains": [contains]})


@pytest.fixture
def parts(built, tmp_path):
    """Of a run of data.path with another folder mixed in, and a model with a past."""
    seal(tmp_path / "a", 0, 1, 2, 3)
    seal(tmp_path / "a", 4)
    seal(tmp_path / "b", 5, 6)
    (tmp_path / "model").mkdir()
    past = json.dumps({"contains": ["gsm8k/test"]})
    (tmp_path / "model" / "grre_provenance.json").write_text(past)
    words = f"--run-dir {tmp_path / 'run'} --data.path {tmp_path / 'a'}"
    words += f" --data.mix {tmp_path / 'b'}=0.5 --model.path {tmp_path / 'model'}"
    config = override(built.config, words.split())
    config.folder.mkdir()
    return dataclasses.replace(built, config=config)


def trained_on(parts, folders):
    return ids(Chooser(None, stored_streams(parts, folders)), range(8))


def cold(parts):
    """Of the run without its warm start."""
    config = override(parts.config, ["--warm_start.steps=0"])
    return dataclasses.replace(parts, config=config)


def test_a_resumed_run_trains_on_what_it_began_with(parts, tmp_path):
    folders = sources.open_folders(parts.config, resume=False)
    before = trained_on(parts, folders)
    sources.record_folders(parts.config.folder, folders)
    seal(tmp_path / "a", 7, 8, contains="b/test")
    seal(tmp_path / "b", 9)
    again = sources.open_folders(parts.config, resume=True)
    assert trained_on(parts, again) == before
    assert sources.training_contents(cold(parts), again.values()) == {"a/train", "gsm8k/test"}
    new = sources.open_folders(parts.config, resume=False)
    assert trained_on(parts, new) != before
    assert sources.training_contents(cold(parts), new.values()) == {
        "a/train",
        "b/test",
        "gsm8k/test",
    }
    samples = dataclasses.replace(parts, config=override(parts.config, ["--data.path="]))
    for learner in (cold(samples), parts):  # demonstrations are of the task too
        assert sources.training_contents(learner, ()) == {"arithmetic/train", "gsm8k/test"}


def test_a_folder_that_lacks_what_a_run_began_with_is_refused(parts, tmp_path):
    sources.record_folders(parts.config.folder, sources.open_folders(parts.config, resume=False))
    file = parts.config.folder / "stored.json"
    kept = json.loads(file.read_text())
    folder = str(tmp_path / "a")
    for text, named in (
        (json.dumps(kept | {folder: kept[folder] | {"datasets": 3}}), folder),
        ("{", "stored.json"),
        ('{"a": 3}', "stored.json"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=named):
            sources.open_folders(parts.config, resume=True)


def test_processes_that_look_at_different_moments_read_the_same(parts, tmp_path, monkeypatch):
    # The other one saw one data set.
    monkeypatch.setattr(processes, "gather_ints", lambda number: np.array([number, 1]))
    folders = sources.open_folders(parts.config, resume=False)
    assert [len(part.datasets) for part in folders.values()] == [1, 1]
    assert len(folders[str(tmp_path / "a")]) == 4


def test_another_folder_of_the_same_name_is_refused(parts, tmp_path):
    config = parts.config
    sources.record_folders(config.folder, sources.open_folders(config, resume=False))
    shutil.rmtree(tmp_path / "a")
    seal(tmp_path / "a", 0, 1, 2, 3)
    seal(tmp_path / "a", 4)
    sources.open_folders(config, resume=True)  # the same data, imported again
    shutil.rmtree(tmp_path / "a")
    seal(tmp_path / "a", 10, 11, 12, 13)
    seal(tmp_path / "a", 14)
    with pytest.raises(DataError, match=str(tmp_path / "a")):
        sources.open_folders(config, resume=True)
    file = config.folder / "stored.json"  # earlier versions wrote the numbers alone
    marks = json.loads(file.read_text())
    file.write_text(json.dumps({path: {"datasets": m["datasets"]} for path, m in marks.items()}))
    assert len(sources.open_folders(config, resume=True)) == 2
