"""The folders that a run reads: opened as they were when it began, and their usable groups
selected.
"""

import dataclasses
import json

import numpy as np
import pytest

from grre_jax import objectives, rollouts
from grre_jax.config import (
    DataConfig,
    TrainingConfig,
)
from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import processes
from grre_jax.training import build
from grre_jax.training.config.overrides import override
from grre_jax.training.data import sources
from grre_jax.training.data.choose import Chooser, read, stored_streams

from ...groups import played_group, text_group

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(scope="module")
def built(make_config, tmp_path_factory):
    return build.build(
        make_config(tmp_path_factory.mktemp("data") / "run", "--objective.name reinforce")
    )


def select(built, folder, *, objective="reinforce", prompts_per_step=2, steps=100, **fields):
    """The chooser of a run of data.path."""
    config = dataclasses.replace(
        built.config,
        data=DataConfig(path=str(folder), **fields),
        training=TrainingConfig(steps=steps, prompts_per_step=prompts_per_step),
    )
    if isinstance(objective, str):
        objective = objectives.algorithm(objective)
    parts = dataclasses.replace(built, config=config, objective=objective)
    return Chooser(None, stored_streams(parts, sources.open_folders(config, resume=False)))


def ids(choose, step):
    return [group.group_id for group in read(choose(step))]


def names(choose, steps):
    return {name for step in range(steps) for name in ids(choose, step)}


# ---- the groups of data.path


@pytest.fixture
def folder(tmp_path):
    groups = [text_group(i) for i in range(6)] + [
        text_group(6, rewards=(1, 1)),
        text_group(7, texts=("1234567$", "3$")),
    ]
    rollouts.write(
        tmp_path / "rollouts", groups, writer="import", metadata={"contains": ["somewhere/test"]}
    )
    return tmp_path / "rollouts"


def test_batches_are_a_function_of_the_step_and_cover_an_epoch(built, folder):
    batches, again = select(built, folder, questions="0:6"), select(built, folder, questions="0:6")
    for step in (4, 0, 2):
        assert read(batches(step)) == read(again(step)) and len(batches(step).picks) == 2
    for epoch in range(3):
        seen = [name for step in range(3) for name in ids(batches, 3 * epoch + step)]
        assert sorted(seen) == [f"g{i}" for i in range(6)]
    assert np.isnan(batches(0).ages).all()


def test_selection(built, folder):
    assert names(select(built, folder, questions="1:4", prompts_per_step=3), 4) == {
        "g1",
        "g2",
        "g3",
    }
    # Groups without signal are left out, unless asked for; so are those over the limit, once asked
    # for.
    fields = {"questions": "4:7", "drop_zero_variance": False, "prompts_per_step": 3}
    assert names(select(built, folder, **fields), 5) == {"g4", "g5", "g6"}
    assert names(select(built, folder, questions="4:8", drop_over_limit=True), 5) == {"g4", "g5"}


def test_turns_of_equal_rewards_may_differ(built, tmp_path):
    groups = [played_group(number, rewards=[1, 1]) for number in range(2)]
    rollouts.write(tmp_path / "r", groups, writer="w")
    with pytest.raises(DataError, match=r"2 by data\.drop_zero_variance"):
        select(built, tmp_path / "r")
    objective = objectives.algorithm("reinforce", returns="turns")
    config = override(built.config, ["--sampling.max_new_tokens=8"])
    roomy = dataclasses.replace(built, config=config)
    chosen = select(roomy, tmp_path / "r", objective=objective)
    assert {pick.index for pick in chosen(0).picks} == {0, 1}


def test_a_group_over_the_limit_is_an_error(built, folder):
    with pytest.raises(DataError, match=r"completion 0 of group g7 \(q7\) has 8 tokens"):
        select(built, folder)


def test_too_few_groups_say_what_dropped_them(built, folder, aged, tmp_path):
    (tmp_path / "empty").mkdir()
    even = [text_group(i, rewards=(1, 1)) for i in range(3)]
    rollouts.write(tmp_path / "even", even, writer="w")
    unjudged = text_group(8, rewards=(np.nan,) * 2, extra={"verify_failures": ["crashed"] * 2})
    rollouts.write(folder, [unjudged], writer="import")
    every = r"zero_variance.*data\.drop_over_limit.*verdict"
    for path, fields, named in (
        (folder, {"questions": "0:2", "prompts_per_step": 4}, "training.prompts_per_step"),
        (folder, {"questions": "90:95"}, "data.questions"),
        (folder, {"drop_over_limit": True, "prompts_per_step": 7}, every),
        (tmp_path / "empty", {}, "empty"),
        (aged, {"max_staleness": 0, "prompts_per_step": 3}, "data.max_staleness"),
        (folder, {"questions": "0:6", "mix": f"{tmp_path / 'even'}=0.5"}, "drop_zero_variance"),
    ):
        with pytest.raises(DataError, match=named):
            select(built, path, **fields)


def test_one_group_without_behaviour_log_probs_is_enough_to_refuse_a_folder(
    built, folder, tmp_path, make_group
):
    with pytest.raises(DataError, match="group g0 .*behavior_logprobs"):
        select(built, folder, objective="grpo", questions="0:4")
    mixed = tmp_path / "mixed"
    groups = [make_group(i, lengths=(2, 3), rewards=[0, 1]) for i in range(3)]
    rollouts.write(mixed, [*groups, text_group(9)], writer="import")
    assert len(ids(select(built, mixed, objective="grpo", questions="0:3"), 0)) == 2
    with pytest.raises(DataError, match="group g9 "):
        select(built, mixed, objective="grpo")


# ---- ages, orders and uses of stored groups


@pytest.fixture
def aged(tmp_path, make_group):
    for version in range(4):
        fields = {"lengths": (2, 3), "rewards": [0, 1 + version], "policy_version": [version] * 2}
        groups = [make_group(10 * version + i, **fields) for i in range(2)]
        rollouts.write(tmp_path / "aged", groups, writer="sampler", policy_version=version)
    return tmp_path / "aged"


def test_a_staleness_window_is_of_the_folders_newest(built, aged):
    assert names(select(built, aged, max_staleness=1), 2) == {"g20", "g21", "g30", "g31"}
    # Its newest, whatever is trained on; and an expert's groups have no age.
    older = select(built, aged, max_staleness=2, questions="0:4", prompts_per_step=1)
    assert names(older, 2) == {"g10", "g11"}
    rollouts.write(aged, [text_group(i, is_expert=[1, 1]) for i in range(2)], writer="import")
    assert names(select(built, aged, max_staleness=0), 2) == {"g30", "g31", "g0", "g1"}


def test_the_order_can_be_that_of_the_folder_or_of_age(built, aged):
    stored = select(built, aged, order="stored", prompts_per_step=4)
    first = ["g0", "g1", "g10", "g11"]
    second = ["g20", "g21", "g30", "g31"]
    assert [ids(stored, step) for step in range(3)] == [first, second, first]
    newest = select(built, aged, order="newest", prompts_per_step=4)
    assert ids(newest, 0) == second[::-1]


def test_uses_are_counted_before_anything_runs(built, aged):
    lasts = select(built, aged, max_uses=3, prompts_per_step=4, steps=6)
    seen = [name for step in range(6) for name in ids(lasts, step)]
    assert sorted(seen) == sorted(3 * [f"g{10 * v + i}" for v in range(4) for i in range(2)])
    with pytest.raises(DataError, match="data.max_uses"):
        select(built, aged, max_uses=3, prompts_per_step=4, steps=7)


# ---- provenance


def test_contents_are_the_models_past_and_the_data(built, folder, tmp_path):
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "grre_provenance.json"
    file.write_text(json.dumps({"contains": ["gsm8k/test"]}))
    config = override(built.config, [f"--model.path={file.parent}"])
    parts = dataclasses.replace(built, config=config)
    assert sources.training_contents(parts, ()) == {"gsm8k/test", "arithmetic/train"}
    parts = dataclasses.replace(built, config=override(config, [f"--data.path={folder}"]))
    contents = sources.training_contents(parts, [rollouts.read(folder)])
    assert contents == {"gsm8k/test", "somewhere/test"}


# ---- the folders, as they were when the run began


def seal(folder, *numbers, contains="a/train"):
    groups = [text_group(i) for i in numbers]
    rollouts.write(folder, groups, writer="import", metadata={"contains": [contains]})


@pytest.fixture
def parts(built, tmp_path):
    """Of a run of data.path with another folder mixed in."""
    seal(tmp_path / "a", 0, 1, 2, 3)
    seal(tmp_path / "a", 4)
    seal(tmp_path / "b", 5, 6)
    words = (
        f"--run-dir {tmp_path / 'run'} --data.path {tmp_path / 'a'} --data.mix {tmp_path / 'b'}=0.5"
    )
    config = override(built.config, words.split())
    config.folder.mkdir()
    return dataclasses.replace(built, config=config)


def trained_on(parts, folders):
    choose = Chooser(None, stored_streams(parts, folders))
    return [ids(choose, step) for step in range(8)]


def test_a_resumed_run_trains_on_what_it_began_with(parts, tmp_path):
    folders = sources.open_folders(parts.config, resume=False)
    before = trained_on(parts, folders)
    sources.record_folders(parts.config.folder, folders)
    seal(tmp_path / "a", 7, 8, contains="b/test")
    seal(tmp_path / "b", 9)
    again = sources.open_folders(parts.config, resume=True)
    assert trained_on(parts, again) == before
    assert sources.training_contents(parts, again.values()) == {"a/train"}
    assert [len(part) for part in again.values()] == [5, 2]
    new = sources.open_folders(parts.config, resume=False)
    assert trained_on(parts, new) != before
    assert sources.training_contents(parts, new.values()) == {"a/train", "b/test"}


def test_a_folder_that_begins_otherwise_is_refused(parts, tmp_path):
    sources.record_folders(parts.config.folder, sources.open_folders(parts.config, resume=False))
    file = parts.config.folder / "stored.json"
    kept = json.loads(file.read_text())
    folder = str(tmp_path / "a")
    others = [kept | {folder: kept[folder] | other} for other in ({"last": "0"}, {"datasets": 3})]
    for text, named in (
        *((json.dumps(other), folder) for other in others),
        ("{", "stored.json"),
        ('{"a": 3}', "stored.json"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=named):
            sources.open_folders(parts.config, resume=True)


def test_processes_that_look_at_different_moments_read_the_same(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(
        processes, "gather_ints", lambda number: np.array([number, 1])
    )  # the other one saw one data set, and as many bits in its sum
    with pytest.raises(UsageError, match="data.path"):
        sources.open_folders(parts.config, resume=False)
    monkeypatch.setattr(processes, "require_same", lambda text, what: None)
    folders = sources.open_folders(parts.config, resume=False)
    assert [len(part.datasets) for part in folders.values()] == [1, 1]
    assert len(folders[str(tmp_path / "a")]) == 4
