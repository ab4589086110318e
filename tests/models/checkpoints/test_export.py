"""Writing Hugging Face folders."""

import json

import pytest

from grre_jax import models
from grre_jax.errors import DataError, UsageError

from ..conftest import STORED


# Windows and two scales of rotation; biases and a head of its own.
@pytest.mark.parametrize("name", ["gemma3", "qwen2_untied"])
def test_round_trip(name, tmp_path):
    case = STORED / name
    model = models.load(case)
    out = models.save(model, tmp_path / "out")
    assert models.load_config(out) == model.config
    assert models.fingerprint(models.load(out)) == models.fingerprint(model)
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (out, case))
    rope, published = ours.pop("rope_parameters", {}), theirs.pop("rope_parameters", {})
    assert rope.items() >= published.items()  # defaults are written out
    shared = ours.keys() & theirs.keys() - {"transformers_version", "pad_token_id"}
    assert {k: ours[k] for k in shared} == {k: theirs[k] for k in shared}


def test_tokenizer_files_are_copied_and_the_end_tokens_are_the_models(small, tmp_path):
    ids = {"bos_token_id": 5, "pad_token_id": 6, "eos_token_id": 9}
    texts = {"tokenizer.json": "{}", "chat_template.jinja": "{{ messages }}"}
    for name, text in (texts | {"generation_config.json": json.dumps(ids)}).items():
        (tmp_path / name).write_text(text)
    out = models.save(small(eos_ids=(7, 8)), tmp_path / "out", tokenizer_from=tmp_path)
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


def test_a_failure_leaves_nothing(small, tmp_path):
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="tokenizer"):
        models.save(small(), tmp_path / "out", tokenizer_from=tmp_path / "bare")
    with pytest.raises(UsageError):
        models.save(small(qk_norm=True), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["bare"]
