"""Writing Hugging Face folders."""

import json

import pytest

from grre_jax import models
from grre_jax.errors import DataError, UsageError

from ..conftest import CASES, STORED

# Windows and two scales of rotation; biases and a head of its own.
QUICK = ("gemma3", "qwen2_untied")


def same(a, b):
    return a.config == b.config and models.fingerprint(a) == models.fingerprint(b)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES],
)
def test_round_trip(name, tmp_path):
    case = STORED / name
    model = models.load(case)
    assert models.save(model, tmp_path / "out") == tmp_path / "out"
    assert same(model, models.load(tmp_path / "out"))
    ours, theirs = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "out", case)
    )
    rope, published = ours.pop("rope_parameters", {}), theirs.pop("rope_parameters", {})
    assert rope.items() >= published.items()  # defaults are written out
    shared = ours.keys() & theirs.keys() - {"transformers_version"}
    assert {k: ours[k] for k in shared} == {k: theirs[k] for k in shared}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_tokenizer_files_are_copied_and_the_end_tokens_are_the_models(small, tmp_path):
    source = tmp_path / "source"
    out = tmp_path / "out"
    source.mkdir()
    texts = {"tokenizer.json": "{}", "chat_template.jinja": "{{ messages }}"}
    for name, text in texts.items():
        (source / name).write_text(text)
    ids = {"bos_token_id": 5, "pad_token_id": 6, "eos_token_id": 9}
    (source / "generation_config.json").write_text(json.dumps(ids))
    models.save(small(eos_ids=(7, 8)), out, tokenizer_from=source)
    assert {name: (out / name).read_text() for name in texts} == texts
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation == ids | {"eos_token_id": [7, 8]}
    assert json.loads((out / "config.json").read_text())["bos_token_id"] == 5


def test_what_exists_is_not_overwritten(small, tmp_path):
    notes = tmp_path / "full" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    for path in (notes.parent, notes):
        with pytest.raises(UsageError, match=str(path)):
            models.save(small(), path)
    assert notes.read_text() == "mine"
    (tmp_path / "empty").mkdir()
    models.save(small(), tmp_path / "empty")
    assert models.load_config(tmp_path / "empty") == small().config


def test_a_failure_leaves_nothing(small, tmp_path):
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="tokenizer"):
        models.save(small(), tmp_path / "out", tokenizer_from=tmp_path / "bare")
    with pytest.raises(UsageError):
        models.save(small(qk_norm=True), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["bare"]
