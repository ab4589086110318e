"""The run's folder: nothing that exists is touched unless it was asked for, and a kill leaves a run
or none.
"""

import json
import shutil
from pathlib import Path

import pytest

from grre_jax import config as configs
from grre_jax.errors import DataError, UsageError
from grre_jax.training import run_folder
from grre_jax.training.config.overrides import override
from grre_jax.training.run_folder import open_run_folder

from ..run_processes import contents


def opened(config, *, resume=False, overwrite=False):
    return open_run_folder(config, resume=resume, overwrite=overwrite)


def refused(config, error, named, **options):
    """Checks that the folder is refused by this name, and stays as it was."""
    before = contents(config.folder)
    with pytest.raises(error, match=named):
        opened(config, **options)
    assert contents(config.folder) == before


@pytest.fixture
def run(make_config, tmp_path):
    config = make_config(tmp_path / "run")
    (opened(config) / "rollouts").mkdir()
    (config.folder / "rollouts" / "manifest.jsonl").write_text("precious\n")
    return config


def test_what_exists_is_refused_and_untouched(run, make_config, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for name in ("own.py", "questions.jsonl"):
        (run.folder / name).write_text("")
    own = run.folder / "own.py"
    other = make_config(tmp_path)
    file = make_config(tmp_path / "thesis.tex")
    for config, options, error, named in (
        (run, {}, UsageError, "--resume"),
        (run, {"resume": True, "overwrite": True}, UsageError, "--resume"),
        (other, {}, UsageError, "--run-dir"),
        (other, {"overwrite": True}, UsageError, "--overwrite"),
        (other, {"resume": True}, DataError, "config.json"),
        (file, {"overwrite": True}, UsageError, "thesis"),
        (file, {"resume": True}, DataError, "thesis"),
        (
            override(run, [f"--data.path={run.folder / 'a'}"]),
            {"overwrite": True},
            UsageError,
            "data.path",
        ),
        (
            override(run, [f"--model.path={run.folder}"]),
            {"overwrite": True},
            UsageError,
            "model.path",
        ),
        *(
            (override(run, [f"--{field}={value}"]), {"overwrite": True}, UsageError, field)
            for field, value in (
                ("task.name", f"{own}:make"),
                ("task.reward", f"{own}:right=0.5"),
                ("task.options.path", run.folder / "questions.jsonl"),
                ("objective.name", f"{own}:loss"),
                ("task.options.template", f"{own}:" + "x" * 5000),
            )
        ),
    ):
        refused(config, error, named, **options)


def test_a_run_is_replaced_whatever_a_killed_process_left(run, monkeypatch):
    """Killed before the run is renamed, and before it is removed: the run is whole or gone."""
    inside = contents(run.folder)
    for owner, name, call in ((Path, "rename", 1), (shutil, "rmtree", 2)):
        calls = iter(range(1, 9))
        original = getattr(owner, name)

        def cut(*given, calls=calls, call=call, original=original, **options):
            if next(calls) == call:
                raise KeyboardInterrupt
            return original(*given, **options)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, cut)
            opened(run, overwrite=True)
        assert not run.folder.exists() or contents(run.folder) == inside
    opened(run)
    opened(run, overwrite=True)
    assert contents(run.folder).keys() == {"config.json", "run.json"}
    assert [path.name for path in run.folder.parent.iterdir()] == ["run"]


def test_a_process_killed_at_its_first_write_leaves_a_free_folder(make_config, tmp_path):
    (tmp_path / ".config.json.partial").write_text("{")
    opened(make_config(tmp_path))
    assert set(contents(tmp_path)) == {"config.json", "run.json"}


def test_a_folder_of_hidden_files_is_not_free(make_config, tmp_path):
    (tmp_path / ".git").mkdir()
    refused(make_config(tmp_path), UsageError, "already exists")
    assert (tmp_path / ".git").is_dir()


def test_resume_takes_what_does_not_change_the_past(run):
    words = "--training.steps 13 --evaluation.every 1 --checkpoint.keep 9 --checkpoint.export true"
    changed = override(run, [*words.split(), "--mesh.data", "1"])
    before = contents(run.folder)
    opened(changed, resume=True)
    assert contents(run.folder) == before | {"config.json": changed.to_json().encode()}


def test_resume_of_another_configuration_names_the_fields(run):
    words = "--seed 3 --objective.name reinforce --training.steps 99 --training.prompts_per_step 8"
    changed = override(run, words.split())
    fields = r"objective\.name.*objective\.options\.epsilon_low.*seed.*training\.prompts_per_step\)"
    refused(changed, UsageError, fields, resume=True)


def test_a_field_that_an_older_version_did_not_have_is_its_default(make_config):
    config = make_config("run")
    stored = json.loads(config.to_json())
    del stored["sampling"]["min_p"], stored["data"]
    old = configs.from_dict(stored)
    assert run_folder.changed_fields(old, config) == []
    cut = override(config, ["--sampling.min_p=0.1"])
    assert run_folder.changed_fields(old, cut) == ["sampling.min_p"]
    stored["task"]["options"] = {}
    old = configs.from_dict(stored)
    assert run_folder.changed_fields(old, config) == ["task.options.operands"]


def test_a_folder_is_trained_in_by_one_process(tmp_path):
    for _ in range(2):
        with run_folder.locked(tmp_path), pytest.raises(UsageError), run_folder.locked(tmp_path):
            pass


def test_steps_of_names(tmp_path):
    for name in ("runs/a", "s3://b/a"):
        assert run_folder.split_step(f"{name}:40") == (name, 40)
    (tmp_path / "odd:3").mkdir()
    for name in ("runs/a", "a:b", "a:", str(tmp_path / "odd:3")):
        assert run_folder.split_step(name) == (name, None)
