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
from grre_jax.models.checkpoints import adapters, config_fields, families
from grre_jax.models.lora import LoraConfig

transformers = pytest.importorskip("transformers")

CLASSES = {
    "llama": "LlamaConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "gemma3": "Gemma3TextConfig",
}
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
VALUES = [
    None,
    True,
    False,
    -1,
    0,
    2,
    1.5,
    math.inf,
    math.nan,
    10**30,
    "",
    "x",
    "2",
    [],
    [[1]],
    ["x"],
    {},
    {"a": 1},
]
SIZES = dict(vocab_size=11, hidden_size=16, intermediate_size=12, num_hidden_layers=2)
SIZES |= dict(
    num_attention_heads=2, num_key_value_heads=1, head_dim=8, eos_token_id=3, bos_token_id=2
)


def fields_of(family):
    """Names of the fields of the family's class, and of what files have besides."""
    return list(
        dict.fromkeys(
            [f.name for f in dataclasses.fields(getattr(transformers, CLASSES[family]))] + PUBLISHED
        )
    )


def base_of(family):
    return SIZES | {"model_type": families.MODEL_TYPES[family]}


def ours(values):
    """Our configuration, or the refusal's message."""
    try:
        return models.config_from_dict(values)
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("family", CLASSES)
def test_each_field_is_read_harmless_or_refused(family):
    base, harmless = ours(base_of(family)), " ".join(config_fields.HARMLESS.values()).split()
    assert isinstance(base, models.ModelConfig)
    refused = set()
    for field in fields_of(family):
        for value in VALUES:
            found = ours(base_of(family) | {field: value})
            if isinstance(found, str):
                assert field in found, (field, value, found)
                refused.add(field)
            elif field in harmless:
                assert found == base, (field, value)
    # Whatever is not harmless has values that are refused, if only for their type.
    assert refused == set(fields_of(family)) - set(harmless)


def test_an_unknown_field_that_is_off_is_ignored_with_one_warning(tmp_path, caplog):
    values, file = base_of("qwen2"), tmp_path / "config.json"
    wanted = models.config_from_dict(values)
    off = dict(zip("abcdefg", [None, False, 0, 0.0, "", [], {}], strict=True))
    assert models.config_from_dict(values | off, file) == wanted
    assert models.config_from_dict(values | off, file) == wanted
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.args == (str(file), "a, b, c, d, e, f, g")
    for value in (True, 1, 0.5, "x", [0], {"y": 0}):
        with pytest.raises(DataError, match="field a "):
            models.config_from_dict(values | {"a": value}, file)


# -- Files
# ------------------------------------------------------------


def walk(folder, file, values, fields, load):
    """Writes the file with every value in every field; `load` succeeds, or raises a DataError
    that names file and field. Counts both.
    """
    counts = [0, 0]
    for field in fields:
        for value in VALUES:
            (folder / file).write_text(json.dumps(values | {field: value}))
            try:
                load(folder)
            except DataError as error:
                assert file in str(error) and str(field).split(".")[0] in str(error), (
                    field,
                    value,
                    error,
                )
                counts[1] += 1
            else:
                counts[0] += 1
    return counts


def test_generation_config(checkpoint):
    folder = checkpoint()
    accepted, refused = walk(
        folder,
        "generation_config.json",
        {},
        ["eos_token_id", "bos_token_id", "pad_token_id"],
        models.load_config,
    )
    assert refused > 2 * accepted
    fields = [
        name
        for name in vars(transformers.GenerationConfig())
        if not name.endswith(("s_token_id", "pad_token_id"))
    ]
    accepted, refused = walk(folder, "generation_config.json", {}, fields, models.load_config)
    assert refused == 0  # defaults of generate(), which no run here takes


def test_generation_config_goes_before_config(checkpoint):
    folder = checkpoint()
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"bos_token_id": 1}))
    for said, bos in (({}, 1), ({"bos_token_id": None}, 1), ({"bos_token_id": 2}, 2)):
        (folder / "generation_config.json").write_text(json.dumps(said))
        assert models.load_config(folder).bos_id == bos
        (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 3]}))
    assert models.load_config(folder).eos_ids == (7, 3)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 10**6]}))
    with pytest.raises(
        DataError,
        match=r"generation_config.json: eos_token_id: expected token ids below .* got \[1, 1000000\]",
    ):
        models.load_config(folder)


def test_the_index(checkpoint):
    folder = checkpoint()
    tensors = list(safetensors.numpy.load_file(folder / "model.safetensors"))
    index = folder / "model.safetensors.index.json"
    (folder / "model.safetensors").rename(folder / "model-a.safetensors")
    weight_map = dict.fromkeys(tensors, "model-a.safetensors")
    accepted, refused = walk(
        folder, index.name, {"weight_map": weight_map}, ["weight_map"], models.load
    )
    assert (accepted, refused) == (0, len(VALUES))
    files = [
        *VALUES,
        "../b.safetensors",
        str(folder / "model-a.safetensors"),
        "config.json",
        "a\0.safetensors",
    ]
    for file in files:
        index.write_text(json.dumps({"weight_map": weight_map | {tensors[0]: file}}))
        with pytest.raises(
            DataError,
            match=(
                r"index.json: the field weight_map\['.*'\] must be the name of a .safetensors file"
                r" in the same"
            ),
        ):
            models.load(folder)
    index.write_text(json.dumps({"metadata": 1, "weight_map": weight_map, "other": [1]}))
    assert models.load(folder).config.vocab_size > 1
    (folder / "model.safetensors").write_bytes((folder / "model-a.safetensors").read_bytes())
    with pytest.raises(
        DataError,
        match=r"model.safetensors.index.json, which names other files",
    ):
        models.load(folder)


@pytest.fixture
def adapter(tmp_path):
    shape = models.ModelConfig(
        vocab_size=9,
        hidden_size=4,
        intermediate_size=4,
        num_layers=1,
        num_heads=2,
        num_kv_heads=2,
        head_dim=2,
    )
    model = models.init(shape, lora=LoraConfig(2, 3.0, ("q_proj",)))
    return models.save_adapter(model, tmp_path / "adapter", base="base")


def test_adapter_config(adapter):
    values = json.loads((adapter / "adapter_config.json").read_text())
    fields = list(adapters.FIELDS)
    try:
        import peft
    except ImportError:
        pass
    else:
        fields = list(
            dict.fromkeys([*fields, *(field.name for field in dataclasses.fields(peft.LoraConfig))])
        )
    read = LoraConfig(2, 3.0, ("q_proj",))
    harmless = " ".join(adapters.HARMLESS.values()).split()
    scales = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
    refused = set()
    for field in fields:
        for value in VALUES:
            (adapter / "adapter_config.json").write_text(json.dumps(values | {field: value}))
            try:
                found = adapters.load_adapter_config(adapter)
            except DataError as error:
                assert "adapter_config.json" in str(error) and field in str(error), (
                    field,
                    value,
                    error,
                )
                refused.add(field)
            else:
                assert found == read or field in scales, (field, value)
    assert refused == set(fields) - set(harmless)


# -- Broken folders
# ------------------------------------------------------------


def header(file):
    """(header as an object, bytes of the tensors) of a safetensors file."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(file, change):
    values, rest = header(file)
    encoded = json.dumps(change(values)).encode() if callable(change) else change
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + rest)


def first(values, **fields):
    name = next(name for name in values if name != "__metadata__")
    return values | {name: values[name] | fields}


def lie_about_length(length):
    return lambda folder: (folder / "model.safetensors").write_bytes(
        length.to_bytes(8, "little") + (folder / "model.safetensors").read_bytes()[8:]
    )


def replace_by_folder(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return change


def replace_by_dangling_link(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("nowhere")

    return change


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FILES = ("config.json", WEIGHTS, "generation_config.json", INDEX)


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut_at(end):
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:end])


def tensor_said_to_be(fields):
    return lambda folder: with_header(folder / WEIGHTS, lambda values: first(values, **fields))


TENSORS = (
    {"dtype": "X9"},
    {"dtype": "BOOL"},
    {"shape": [-1]},
    {"shape": [2**62, 2**62]},
    {"data_offsets": [0, 2**63]},
    {"data_offsets": None},
)
BROKEN = {
    **{f"{name} is a folder": replace_by_folder(name) for name in FILES},
    **{f"{name} points nowhere": replace_by_dangling_link(name) for name in FILES},
    **{f"{name} is no text": written(name, b"\xff\xfe\0") for name in FILES},
    **{f"{name} is nested": written(name, b"[" * 100_000) for name in FILES if "json" in name},
    **{f"the header is {n} long": lie_about_length(n) for n in (0, 7, 2**63)},
    **{f"the weights end at {end}": cut_at(end) for end in (0, 8, 500, -1)},
    **{f"a tensor is said to be {fields}": tensor_said_to_be(fields) for fields in TENSORS},
    "the header is a list": lambda folder: with_header(folder / WEIGHTS, b"[]"),
    "the header is nested": lambda folder: with_header(folder / WEIGHTS, b"[" * 10_000),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_folders(checkpoint, fault):
    folder = checkpoint("llama")
    BROKEN[fault](folder)
    with pytest.raises(DataError, match=str(folder)):
        models.load(folder)


def test_tensors_that_are_not_in_floating_point(checkpoint):
    folder = checkpoint("llama")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].astype(jax.numpy.float8_e4m3fn)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        DataError,
        match=f"tensor {name} is stored as .*, which is not supported: use the unquantized",
    ):
        models.load(folder)


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_tensors_that_are_not_finite(checkpoint, value):
    name = "model.layers.1.self_attn.k_proj.weight"
    folder = checkpoint("llama")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors[name].flat[3] = value
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        DataError,
        match=f"model.safetensors: tensor {name} contains values (that are not finite|beyond float16)",
    ):
        models.load(folder, dtype=np.float16)
    if value == 1e30:
        assert models.load(folder).config.vocab_size > 1


def test_a_folder_with_an_adapter_in_it(checkpoint, adapter):
    """transformers would add the adapter to the model, or to the base that it names."""
    folder = checkpoint("llama")
    for file in adapter.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for load in (models.load, models.load_config):
        for path in (folder, adapter):
            with pytest.raises(DataError, match=f"{path} contains adapter_config.json"):
                load(path)
