"""Every field of a checkpoint's JSON files, at values of every type: read, known to change nothing,
or refused by name. (That it is read as transformers reads it: tests/parity/test_fields.)
"""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
import safetensors.numpy

from grre_jax import models
from grre_jax.errors import DataError
from grre_jax.models.checkpoints import config_fields
from grre_jax.models.checkpoints.families import FAMILIES, model_type

from ..conftest import STORED, edit_tensors

transformers = pytest.importorskip("transformers")

# Fields of config.json files that are not fields of the classes: of transformers 4, of generate(),
# of programs that convert checkpoints.
PUBLISHED = (
    "_name_or_path _attn_implementation_autoset auto_map is_causal is_llama_config"
    " max_sequence_length model_type mlp_bias partial_rotary_factor per_layer_config pretraining_tp"
    " quantization_config rope_interleaved rope_scaling rope_theta sliding_window"
    " sliding_window_pattern temperature tokenizer_class torch_dtype transformers.js_config"
    " unsloth_fixed use_mrope use_sliding_window attn_implementation"
    " original_max_position_embeddings head_dim rope_local_base_freq attention_bias layer_types"
    " _sliding_window_pattern max_length _attn_implementation tf_legacy_loss"
).split()
# Every type of JSON; 1e400 is read as infinity.
VALUES = [None, True, -1, 1.5, math.inf, math.nan, 10**30, "x", [[1]], {"a": 1}]
# Families with every kind of row.
QUICK = ("gemma3", "qwen3_moe")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SIZES = {
    "vocab_size": 11,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "eos_token_id": 3,
    "bos_token_id": 2,
}


def fields_of(family):
    """Names of the fields of the family's class, and of what files have besides."""
    own = dataclasses.fields(transformers.AutoConfig.for_model(model_type(family)))
    return {field.name for field in own} | set(PUBLISHED)


def base_of(family):
    return SIZES | {"model_type": model_type(family)}


def walk(names, read, *places):
    """Reads every value in every field: it is read, or a DataError names the field and `places`.
    Returns the values read, by field, and the fields that were refused.
    """
    found, refused = {}, set()
    for name in names:
        for value in VALUES:
            try:
                found.setdefault(name, []).append(read({name: value}))
            except DataError as error:
                # Fields of rotary embeddings may be named by their places in `rope_parameters`.
                rotary = "rope" in name and "rope_parameters" in str(error)
                others = "of transformers takes" in str(error)  # whose message may name none
                assert rotary or others or name in str(error), (value, error)
                assert all(place in str(error) for place in places), (value, error)
                refused.add(name)
    return found, refused


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FAMILIES],
)
def test_each_field_is_read_harmless_or_refused(family):
    values, names = base_of(family), fields_of(family)
    harmless = set(config_fields.HARMLESS) - {*FAMILIES[family].options.values()}
    names -= FAMILIES[family].fields.keys()
    found, refused = walk(names, lambda change: models.config_from_dict(values | change))
    base = models.config_from_dict(values)
    assert all(config == base for name in harmless for config in found.get(name, ()))
    # Whatever is not harmless has values that are refused, if only for their type.
    assert refused >= names - harmless - {*config_fields.UNDECLARED}


def test_an_unknown_field_that_is_off_is_ignored_with_one_warning(tmp_path, caplog):
    values, file = base_of("qwen2"), tmp_path / "config.json"
    wanted = models.config_from_dict(values)
    off = dict(zip("abcdefg", [None, False, 0, 0.0, "", [], {}], strict=True))
    for _ in range(2):
        assert models.config_from_dict(values | off, file) == wanted
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.args == ("a, b, c, d, e, f, g",)
    for value in (True, 0.5, "x", [0], {"y": 0}):
        with pytest.raises(DataError, match="config.json: a:"):
            models.config_from_dict(values | {"a": value}, file)


# -- Files
# ------------------------------------------------------------


def test_generation_config_goes_before_config(checkpoint):
    folder = checkpoint()
    config = folder / "config.json"
    generation = folder / "generation_config.json"

    def read(values):
        generation.write_text(json.dumps(values))
        return models.load_config(folder)

    tokens = {"eos_token_id", "bos_token_id"}
    assert walk(tokens, read)[1] == tokens
    # Defaults of generate(), which no run here takes.
    others = vars(transformers.GenerationConfig()).keys() - tokens
    for value in VALUES:
        assert read(dict.fromkeys(others, value)) == read({})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"bos_token_id": 1}))
    for fields, bos in (({}, 1), ({"bos_token_id": None}, 1), ({"bos_token_id": 2}, 2)):
        assert read(fields).bos_id == bos
    assert read({"eos_token_id": [7, 3]}).eos_ids == (7, 3)


def test_the_index_names_files_beside_it(checkpoint):
    folder = checkpoint()
    tensors = safetensors.numpy.load_file(folder / WEIGHTS).keys()
    index, part = folder / INDEX, folder / "model-a.safetensors"
    (folder / WEIGHTS).rename(part)
    (folder.parent / part.name).write_bytes(part.read_bytes())
    files = ("config.json", "a\0.safetensors", f"../{part.name}", str(part))
    for weight_map in (*VALUES, *(dict.fromkeys(tensors, file) for file in files)):
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(DataError, match="weight_map|tensor"):  # tensor: an empty object
            models.load(folder)
    weight_map = dict.fromkeys(tensors, part.name)
    index.write_text(json.dumps({"metadata": 1, "weight_map": weight_map, "other": [1]}))
    assert models.load(folder).config.vocab_size > 1


BROKEN = {
    "a folder": lambda file: file.mkdir(),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\0"),
    "cut short": lambda file: file.write_bytes(STORED.joinpath("llama", WEIGHTS).read_bytes()[:-1]),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("name", ["config.json", WEIGHTS, INDEX])
def test_broken_files(checkpoint, name, fault):
    folder = checkpoint("llama")
    (folder / name).unlink(missing_ok=True)
    BROKEN[fault](folder / name)
    with pytest.raises(DataError, match=str(folder)):
        models.load(folder)


UP, BIAS = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    "name, change",
    [
        (UP, lambda tensors: tensors.update({UP: tensors[UP].astype(jax.numpy.float8_e4m3fn)})),
        ("up_proj", lambda tensors: tensors.update({UP: tensors[UP] + np.float32(1e30)})),
        (UP, lambda tensors: tensors.update({UP: tensors[UP][1:]})),
        (UP, lambda tensors: tensors.pop(UP)),
        (BIAS, lambda tensors: tensors.update({BIAS: np.zeros(24, np.float32)})),
    ],
)
def test_tensors_that_do_not_fit_are_named(checkpoint, name, change):
    folder = checkpoint("llama")
    edit_tensors(folder / WEIGHTS, change)
    with pytest.raises(DataError, match=name):
        models.load(folder, dtype=np.float16)
