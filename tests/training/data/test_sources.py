"""The folders that a run reads: opened as they were when it began, and their usable groups
selected.
"""

import dataclasses
import json
import shutil

import pytest

from grre_jax import objectives, rollouts
from grre_jax.errors import DataError
from grre_jax.training import build
from grre_jax.training.config.run import override
from grre_jax.training.data import sources
from grre_jax.training.data.batches import Chooser, stored_streams

from ...groups import chosen_groups, played_group, text_group


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
    return [group.group_id for step in steps for group in chosen_groups(choose(step))]


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


def test_turns_of_equal_rewards_may_differ(select, tmp_path):
    write(tmp_path, [played_group(number, rewards=[1, 1]) for number in range(2)])
    with pytest.raises(DataError, match=r"2 by data\.drop_zero_variance"):
        select(tmp_path)
    chosen = select(tmp_path, "--sampling.max_new_tokens 8", returns="turns")
    assert {pick.index for pick in chosen(0)} == {0, 1}


def test_groups_without_signal_or_over_the_limits_are_left_out(select, folder):
    chosen = select(folder, "--data.drop_over_limit true")
    assert set(ids(chosen, range(6))) == {f"g{number}" for number in range(6)}


@pytest.mark.parametrize(
    "groups, words, objective, named",
    [
        ([{"rewards": (1, 1)}] * 3, "", "reinforce", r"3 by data\.drop_zero_variance"),
        ([{"texts": ("1234567$", "3$")}] * 2, "", "reinforce", "g0 .*max_new_tokens = 3"),
        ([{}] * 2, "", "grpo", "g0 .*behavior_logprobs"),
        ([{}] * 2, "--data.max_staleness 3", "reinforce", "g0 .*policy_version"),
        (
            [{"policy_version": [n, n]} for n in range(2)],
            "--data.max_staleness 0",
            "reinforce",
            r"1 by data\.max_staleness",
        ),
        ([], "", "reinforce", "of 0"),
    ],
)
def test_what_cannot_be_trained_on_is_named(select, tmp_path, groups, words, objective, named):
    (tmp_path / "r").mkdir()
    if groups:
        write(tmp_path / "r", [text_group(n, **fields) for n, fields in enumerate(groups)])
    with pytest.raises(DataError, match=named):
        select(tmp_path / "r", words, objective)


def test_a_staleness_window_is_of_the_folders_newest(select, aged):
    assert set(ids(select(aged, "--data.max_staleness 1"), range(2))) == set(AGED[4:])
    # Its newest, whatever is trained on; and an expert's groups have no age.
    write(aged, [text_group(9, rewards=(1, 1), policy_version=[4, 4])], policy_version=4)
    assert set(ids(select(aged, "--data.max_staleness 2"), range(2))) == set(AGED[4:])
    write(aged, [text_group(i, is_expert=[1, 1]) for i in range(2)])
    assert set(ids(select(aged, "--data.max_staleness 1"), range(2))) == {"g30", "g31", "g0", "g1"}


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


def test_a_resumed_run_trains_on_what_it_began_with(parts, tmp_path):
    folders = sources.open_folders(parts.config, resume=False)
    before = trained_on(parts, folders)
    sources.record_folders(parts.config.folder, folders)
    seal(tmp_path / "a", 7, 8, contains="b/test")
    seal(tmp_path / "b", 9)
    again = sources.open_folders(parts.config, resume=True)
    assert trained_on(parts, again) == before
    new = sources.open_folders(parts.config, resume=False)
    assert trained_on(parts, new) != before
    cold = dataclasses.replace(parts, config=override(parts.config, ["--warm_start.steps=0"]))
    contents = {"a/train", "gsm8k/test"}
    assert sources.training_contents(cold, again.values()) == contents
    assert sources.training_contents(cold, new.values()) == contents | {"b/test"}
    # Demonstrations are of the task too.
    assert sources.training_contents(parts, ()) == {"arithmetic/train", "gsm8k/test"}


def test_a_folder_that_is_not_what_a_run_began_with_is_refused(parts, tmp_path):
    config = parts.config
    sources.record_folders(config.folder, sources.open_folders(config, resume=False))
    folder = tmp_path / "a"

    def replaced(*numbers):
        shutil.rmtree(folder)
        for part in numbers:
            seal(folder, *part)
        return sources.open_folders(config, resume=True)

    replaced((0, 1, 2, 3), (4,))  # the same data, imported again
    for others in (((10, 11, 12, 13), (14,)), ((0, 1, 2, 3),)):
        with pytest.raises(DataError, match=str(folder)):
            replaced(*others)
    (config.folder / "stored.json").write_text('{"a": 3}')
    with pytest.raises(DataError, match=r"stored\.json"):
        sources.open_folders(config, resume=True)
