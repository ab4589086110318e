"""From fields to parts, and the run's folder: nothing that exists is touched unless it was asked
for.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from grre_jax import config as configs
from grre_jax.errors import DataError, UsageError
from grre_jax.training import build, run_folder
from grre_jax.training.config.overrides import override

TASK = """
from grre_jax.tasks import Question, Verdict
class Mine:
    name = "mine"
    def question(self, position): return Question(f"q{position}", "1+1>", "2")
    def evaluation(self, count): return []
    def verify(self, question, completion): return Verdict(0.0)
def build(): return Mine()
"""


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- parts


def test_build(make_config, tmp_path):
    config = make_config(tmp_path / "run")
    parts = build.build(config)
    assert parts.task.name == "arithmetic" and parts.objective.name == "rec_oneside_nois"
    assert parts.model.config.vocab_size == parts.tokenizer.vocab_size
    provenance = json.loads(json.dumps(parts.provenance()))
    assert provenance["tokenizer"] == parts.task.tokenizer.fingerprint
    assert provenance["contains"] == ["arithmetic/train"] and provenance["model"] == "new"
    assert provenance["dtype"] == "float32" and provenance["checkpoint"] == ""
    assert not config.folder.exists()
    # The weights are a function of the seed.
    embeds = [parts.model.embed[...]]
    for seed in (config.seed, config.seed + 1):
        model = build.build_model(dataclasses.replace(config, seed=seed), parts.tokenizer)
        embeds.append(model.embed[...])
    np.testing.assert_array_equal(embeds[0], embeds[1])
    assert not np.array_equal(embeds[0], embeds[2])


@pytest.mark.parametrize(
    "words, message",
    [
        ("--sampling.temperature 0", "sampling.temperature"),
        ("--mesh.data 1 --mesh.fsdp 64", "devices"),
        ("--training.pack_length 2", "pack_length"),
        ("--objective.name grpo --objective.stored reference", "objective.stored"),
        ("--model.template_arguments.thinking false", "model.template_arguments"),
    ],
)
def test_what_cannot_be_built_is_named(make_config, tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        build.build(make_config(tmp_path / "run", words))
    assert not (tmp_path / "run").exists()


def test_a_task_without_a_tokenizer_needs_a_model(make_config, tmp_path):
    (tmp_path / "mine.py").write_text(TASK)
    with pytest.raises(UsageError, match="model.path"):
        build.build(make_config(tmp_path / "run", f"--task.name {tmp_path / 'mine.py'}:build"))


def test_model_contents(make_config, tmp_path):
    def of(path):
        return build.model_contents(make_config(tmp_path / "run", f"--model.path={path}"))

    assert of("") == of(tmp_path) == of(tmp_path / "model.gguf") == set()
    file = tmp_path / "grre_provenance.json"
    file.write_text(json.dumps({"run": "a", "step": 3, "contains": ["gsm8k/test", "gsm8k/train"]}))
    assert of(tmp_path) == {"gsm8k/test", "gsm8k/train"}
    for wrong in (b"{", b"{}", b"\xff\xfe"):
        file.write_bytes(wrong)
        with pytest.raises(DataError, match=r"grre_provenance\.json cannot be read"):
            of(tmp_path)


# ---- the folder


@pytest.fixture
def run(make_config, tmp_path):
    config = make_config(tmp_path / "run")
    folder = run_folder.open_run_folder(config, resume=False, overwrite=False)
    (folder / "rollouts").mkdir()
    (folder / "rollouts" / "manifest.jsonl").write_text("precious\n")
    return config


def test_an_existing_folder_is_refused_and_untouched(run):
    before = contents(run.folder)
    with pytest.raises(UsageError, match="--resume"):
        run_folder.open_run_folder(run, resume=False, overwrite=False)
    with pytest.raises(UsageError, match="exclude each other"):
        run_folder.open_run_folder(run, resume=True, overwrite=True)
    assert contents(run.folder) == before


def test_a_folder_of_other_things_is_never_overwritten(make_config, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    config = make_config(tmp_path)
    with pytest.raises(UsageError, match="already exists"):
        run_folder.open_run_folder(config, resume=False, overwrite=False)
    with pytest.raises(UsageError, match="--overwrite"):
        run_folder.open_run_folder(config, resume=False, overwrite=True)
    with pytest.raises(DataError, match="config.json"):
        run_folder.open_run_folder(config, resume=True, overwrite=False)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_file_in_the_place_of_the_folder(make_config, tmp_path):
    (tmp_path / "run").write_text("a file")
    for overwrite, kind in ((True, UsageError), (False, DataError)):
        with pytest.raises(kind, match="run"):
            run_folder.open_run_folder(
                make_config(tmp_path / "run"), resume=not overwrite, overwrite=overwrite
            )
    assert (tmp_path / "run").read_text() == "a file"


def test_a_process_killed_at_its_first_write_leaves_a_free_folder(make_config, tmp_path):
    (tmp_path / ".config.json.partial").write_text("{")
    run_folder.open_run_folder(make_config(tmp_path), resume=False, overwrite=False)
    assert set(contents(tmp_path)) == {"config.json"}


def test_a_replacement_that_was_killed_is_done_by_the_next(run, monkeypatch):
    """Killed while the run was being removed; test_run_folder.py cuts it short before."""

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        run_folder.open_run_folder(run, resume=False, overwrite=True)
    run_folder.open_run_folder(run, resume=False, overwrite=False)
    assert [path.name for path in run.folder.iterdir()] == ["config.json"]


@pytest.mark.parametrize("section, name", [("data", "rollouts"), ("model", "model")])
def test_overwrite_refuses_to_remove_what_the_run_reads(run, section, name):
    inside = override(run, [f"--{section}.path={run.folder / name}"])
    before = contents(run.folder)
    with pytest.raises(UsageError, match=f"{section}.path"):
        run_folder.open_run_folder(inside, resume=False, overwrite=True)
    assert contents(run.folder) == before


def test_resume_takes_what_does_not_change_the_past(run):
    words = "--training.steps 13 --evaluation.every 1 --checkpoint.keep 9 --checkpoint.export true"
    changed = override(run, [*words.split(), "--mesh.data", "1"])
    before = contents(run.folder)
    run_folder.open_run_folder(changed, resume=True, overwrite=False)
    after = contents(run.folder)
    assert after.pop("config.json").decode() == changed.to_json()
    assert before.pop("config.json") and before == after


def test_resume_of_another_configuration_names_the_fields(run):
    words = "--seed 3 --objective.name reinforce --training.steps 99 --training.prompts_per_step 8"
    changed = override(run, words.split())
    before = contents(run.folder)
    with pytest.raises(UsageError) as caught:
        run_folder.open_run_folder(changed, resume=True, overwrite=False)
    message = str(caught.value)
    fields = "seed objective.name objective.options.epsilon_low training.prompts_per_step"
    assert all(name in message for name in fields.split())
    assert "training.steps" not in message and str(run.folder) in message
    assert contents(run.folder) == before


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
