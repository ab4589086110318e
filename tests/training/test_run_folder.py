"""The run's folder: nothing that exists is touched unless it was asked for."""

import json

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.training import run_folder
from grre_jax.training.config.run import override
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
    other = make_config(tmp_path)
    for config, options, error, named in (
        (run, {}, UsageError, "--resume"),
        (run, {"resume": True, "overwrite": True}, UsageError, "--resume"),
        (other, {"overwrite": True}, UsageError, "--overwrite"),
        (other, {"resume": True}, DataError, "config.json"),
        (make_config(tmp_path / "thesis.tex"), {"overwrite": True}, UsageError, "thesis"),
    ):
        refused(config, error, named, **options)


@pytest.mark.parametrize(
    "field, value",
    [
        ("data.path", "RUN/a"),
        ("model.path", "RUN"),
        ("task.name", "RUN/own.py:make"),
        ("task.reward", "RUN/own.py:right=0.5"),
        ("task.options.path", "RUN/own.py"),
        ("objective.name", "RUN/own.py:loss"),
        ("task.options.template", "RUN/own.py:" + "x" * 5000),
    ],
)
def test_a_run_that_reads_of_the_old_one_does_not_replace_it(run, field, value):
    (run.folder / "own.py").write_text("")
    changed = override(run, [f"--{field}={value.replace('RUN', str(run.folder))}"])
    refused(changed, UsageError, field.rpartition(".")[0], overwrite=True)


def test_a_run_is_replaced(run):
    opened(run, overwrite=True)
    assert contents(run.folder).keys() == {"config.json", "run.json"}


def test_a_folder_of_hidden_files_is_not_free(make_config, tmp_path):
    (tmp_path / ".git").mkdir()
    refused(make_config(tmp_path), UsageError, "already exists")
    (tmp_path / ".git").rmdir()
    opened(make_config(tmp_path))
    assert set(contents(tmp_path)) == {"config.json", "run.json"}


def test_resume_takes_what_does_not_change_the_past(run):
    words = "--training.steps 13 --evaluation.every 1 --checkpoint.keep 9 --checkpoint.export true"
    changed = override(run, [*words.split(), "--mesh.data", "1"])
    before = contents(run.folder)
    opened(changed, resume=True)
    assert contents(run.folder) == before | {"config.json": changed.to_json().encode()}


def test_resume_of_another_configuration_names_the_fields(run):
    words = "--seed 3 --objective.name reinforce --training.steps 99"
    changed = override(run, words.split())
    fields = r"objective\.name, .*objective\.options\.epsilon_low, .*seed\)"
    refused(changed, UsageError, fields, resume=True)


def test_a_field_that_an_older_version_did_not_have_is_its_default(run):
    stored = json.loads(run.to_json())
    del stored["sampling"]["min_p"], stored["data"]
    (run.folder / "config.json").write_text(json.dumps(stored))
    opened(run, resume=True)
    del stored["task"]["options"]["operands"]
    (run.folder / "config.json").write_text(json.dumps(stored))
    cut = override(run, ["--sampling.min_p=0.1"])
    refused(cut, UsageError, r"sampling\.min_p, task\.options\.operands", resume=True)


def test_a_folder_is_trained_in_by_one_process(tmp_path):
    with run_folder.locked(tmp_path), pytest.raises(UsageError), run_folder.locked(tmp_path):
        pass


def test_steps_of_names(tmp_path):
    for name in ("runs/a", "s3://b/a"):
        assert run_folder.split_step(f"{name}:40") == (name, 40)
    (tmp_path / "odd:3").mkdir()
    for name in ("runs/a", "a:b", "a:", str(tmp_path / "odd:3")):
        assert run_folder.split_step(name) == (name, None)
