"""Models and tokenizers from GGUF files (llama.cpp's format).

The `gguf` package reads the file and dequantises the tensors. llama.cpp interleaves the two halves
of each rotated head of a Llama's query and key projections, which `unpermute` reverts. The
tokenizer is rebuilt from the vocabulary and the merges in the metadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import ANY, TEXT, TOKEN, Domain, check, integer, list_of, number, off
from grre_jax.models.checkpoints.safetensors_files import Index
from grre_jax.models.config import ModelConfig, RopeScaling
from grre_jax.models.rotary import rope_frequencies

FAMILIES = ("llama", "qwen2", "qwen3")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_CONTROL, _USER_DEFINED = 3, 4  # llama.cpp's token types
# Divisors of the rotary frequencies, which llama.cpp's converter writes for Llama 3's scaling.
_ROPE_FREQS = "rope_freqs.weight"
# Llama 3's published constants (transformers' `low_freq_factor`, `high_freq_factor`,
# `original_max_position_embeddings`), which the file does not repeat.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_positions": 8192}
# Domains of the metadata that determines the model, by name after the architecture's.
_SIZE = integer(1)
_FIELDS = {
    **dict.fromkeys(
        "vocab_size context_length embedding_length feed_forward_length attention.head_count"
        " attention.head_count_kv attention.key_length attention.value_length".split(),
        _SIZE,
    ),
    "block_count": integer(1, 10_000),
    "attention.layer_norm_rms_epsilon": number(above=0),
    "attention.causal": off(True),
    "rope.dimension_count": _SIZE,
    "rope.freq_base": number(above=0),
    "rope.scaling.type": TEXT,
    "rope.scaling.factor": number(above=0),
    "expert_count": off(0),
    "expert_used_count": off(0),
    # The first two belong to yarn, which is refused; the layout is checked by the tensors' shapes.
    **dict.fromkeys(
        ("rope.scaling.original_context_length", "rope.scaling.finetuned", "tensor_data_layout"),
        ANY,
    ),
}
_TOKENS = {
    f"tokenizer.ggml.{kind}_token_id": TOKEN for kind in ("bos", "eos", "eot", "padding", "unknown")
}
_VOCABULARY = {
    "tokenizer.ggml.tokens": list_of(TEXT, "a list of strings"),
    "tokenizer.ggml.token_type": list_of(integer(0), "a list of integers"),
    "tokenizer.ggml.merges": list_of(TEXT, "a list of strings"),
    "tokenizer.chat_template": TEXT,
}


def unpermute(
    weight: Float[np.ndarray, "outputs *inputs"], heads: int
) -> Float[np.ndarray, "outputs *inputs"]:
    """Undoes llama.cpp's reordering of a Llama's rotated projections and their biases.

    llama.cpp rotates entry 2i of a head with 2i + 1; Hugging Face checkpoints (and this package)
    rotate entry i with i + head_dim/2.

    Args:
        weight: [heads * head_dim, ...] in llama.cpp's order.
        heads: number of heads.
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _hugging_face_name(name: str) -> str:
    """Returns a tensor's name in a Hugging Face checkpoint; the given one if it has none there."""
    if name in _TOP:
        return _TOP[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER:
        return name
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"


class GGUFFile:
    """A GGUF file: tensors under their Hugging Face names, configuration and tokenizer.

    Args:
        path: the file.

    Raises:
        UsageError: the `gguf` package is not installed.
        DataError: the file is damaged, or its model or an option is not supported. Names the file
            and the field.
    """

    def __init__(self, path: Path):
        try:
            import gguf
        except ImportError as error:
            raise UsageError(f"reading {path} needs the gguf package: pip install gguf") from error
        self.path = Path(path)
        try:
            self._reader = gguf.GGUFReader(self.path)
        except Exception as error:  # the bytes of a damaged file can lead the reader to any
            raise DataError(
                f"{path}: cannot be read as GGUF ({error}): copy or download the file again"
            ) from error
        self._dequantize: Callable = gguf.dequantize
        self._tensors = {_hugging_face_name(t.name): t for t in self._reader.tensors}
        self._last: tuple[str, np.ndarray] | None = None

    def field(self, name: str, default: Any = None) -> Any:
        """Returns a metadata value, or `default` if the file does not have it."""
        found = self._reader.fields.get(name)
        try:
            return default if found is None else found.contents()
        except Exception as error:  # see __init__
            raise DataError(
                f"{self.path}: the metadata field {name} cannot be read ({error}): copy or download"
                " the file again"
            ) from error

    def _check(self, domains: dict[str, Domain], prefix: str = "") -> None:
        """Checks the fields that `domains` names; with a prefix, all fields that begin with it."""
        wanted = (lambda name: name.startswith(prefix)) if prefix else domains.__contains__
        names = filter(wanted, self._reader.fields)
        values = {name.removeprefix(prefix): self.field(name) for name in names}
        check(values, domains, self.path, prefix)

    def _required(self, name: str) -> Any:
        value = self.field(name)
        if value is None:
            raise DataError(
                f"{self.path}: the metadata field {name} is missing: use a complete GGUF file"
            )
        return value

    @cached_property
    def config(self) -> ModelConfig:
        """Shape of the model."""
        family = self._check_metadata()
        prefix, names = f"{family}.", self._tensors
        hidden = self._required(f"{prefix}embedding_length")
        heads = self._required(f"{prefix}attention.head_count")
        head_dim = self.field(f"{prefix}attention.key_length", hidden // heads)
        for name in (f"{prefix}attention.value_length", f"{prefix}rope.dimension_count"):
            if self.field(name, head_dim) != head_dim:
                raise DataError(
                    f"{self.path}: the metadata field {name} = {self.field(name)} is not supported:"
                    f" it must be the size of a head, {head_dim}"
                )
        theta = _shortest(self.field(f"{prefix}rope.freq_base", 10_000.0))
        eos = [self.field(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
        attention = "model.layers.0.self_attn"
        try:
            return ModelConfig(
                vocab_size=self.shape("model.embed_tokens.weight")[0],
                hidden_size=hidden,
                intermediate_size=self._required(f"{prefix}feed_forward_length"),
                num_layers=self._required(f"{prefix}block_count"),
                num_heads=heads,
                num_kv_heads=self.field(f"{prefix}attention.head_count_kv", heads),
                head_dim=head_dim,
                rope_theta=theta,
                rope_scaling=self._rope_scaling(family, head_dim, theta),
                rms_norm_eps=_shortest(self._required(f"{prefix}attention.layer_norm_rms_epsilon")),
                tie_embeddings="lm_head.weight" not in names,
                qkv_bias=f"{attention}.q_proj.bias" in names,
                attention_out_bias=f"{attention}.o_proj.bias" in names,
                qk_norm=f"{attention}.q_norm.weight" in names,
                max_positions=self.field(f"{prefix}context_length", 2048),
                family=family,
                eos_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
                bos_id=self.field("tokenizer.ggml.bos_token_id"),
            )
        except ValueError as error:
            raise DataError(f"{self.path}: {error}") from error

    def _check_metadata(self) -> str:
        """Checks the fields of the model and the ids of special tokens; returns the family."""
        family = self._required("general.architecture")
        if family not in FAMILIES:
            raise DataError(
                f"{self.path}: architecture {family!r} is not supported: use a GGUF file of"
                f" {', '.join(FAMILIES)}"
            )
        self._check(_FIELDS, f"{family}.")
        self._check(_TOKENS)
        if "model.embed_tokens.weight" not in self._tensors:
            raise DataError(
                f"{self.path}: tensor token_embd.weight is missing: use a complete GGUF file"
            )
        rows = self.shape("model.embed_tokens.weight")[0]
        for name in _TOKENS:
            if self.field(name, 0) >= rows:
                raise DataError(
                    f"{self.path}: the metadata field {name}: expected a token id below {rows}, got"
                    f" {self.field(name)}: copy or download the file again"
                )
        return family

    def _rope_scaling(self, family: str, head_dim: int, theta: float) -> RopeScaling | None:
        """Returns the scaling from the metadata, or from the divisors of the frequencies."""
        kind = self.field(f"{family}.rope.scaling.type", "none")
        if kind not in ("none", "linear") or (kind == "linear" and _ROPE_FREQS in self._tensors):
            raise DataError(
                f"{self.path}: scaled rotary embeddings of type {kind} ({family}.rope.scaling) are"
                " not supported: only linear ones and Llama 3's are"
            )
        if kind == "linear":
            return RopeScaling(kind, _shortest(self._required(f"{family}.rope.scaling.factor")))
        if _ROPE_FREQS not in self._tensors:
            return None
        divisors = self._dequantized(_ROPE_FREQS).reshape(-1)
        if (divisors == 1).all():
            return None
        scaling = RopeScaling("llama3", _shortest(divisors.max()), **_LLAMA3)
        scaled = rope_frequencies(head_dim, theta, scaling)
        expected = np.asarray(rope_frequencies(head_dim, theta) / scaled)
        if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
            raise DataError(
                f"{self.path}: tensor {_ROPE_FREQS} is not Llama 3's scaling of the rotary"
                " embedding: take the model's Hugging Face folder"
            )
        return scaling

    def names(self) -> set[str]:
        """Returns the Hugging Face names of the tensors."""
        return set(self._tensors) - {_ROPE_FREQS}

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor, [out, in] for a projection."""
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def file(self, name: str) -> Path:
        """Returns the file that contains a tensor."""
        return self.path

    def read(self, name: str, index: Index) -> np.ndarray:
        """Reads a part of a tensor, dequantised to float32.

        The last tensor is kept whole, since its parts are read one after another.
        """
        if self._last is None or self._last[0] != name:
            self._last = None  # freed before the next one is dequantised
            self._last = (name, self._unpermuted(name))
        return self._last[1][index]

    def _dequantized(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        if kind.startswith(("I", "F64")) and not kind.startswith("IQ"):
            raise DataError(
                f"{self.path}: tensor {tensor.name} is stored as {kind}, which is not supported:"
                " use a file with floating-point or quantised weights"
            )
        try:
            value = np.asarray(self._dequantize(tensor.data, tensor.tensor_type), np.float32)
            return value.reshape(self.shape(name))
        except (NotImplementedError, ValueError) as error:
            raise DataError(
                f"{self.path}: tensor {tensor.name} ({kind}) cannot be dequantised ({error}): take"
                " other weights"
            ) from error

    def _unpermuted(self, name: str) -> np.ndarray:
        value = self._dequantized(name)
        heads = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}
        projection = name.split(".")[-2]
        permuted = self.config.family == "llama" and projection in heads
        return unpermute(value, heads[projection]) if permuted else value

    def write_tokenizer(self, folder: Path) -> dict[str, Any]:
        """Writes tokenizer.json and tokenizer_config.json (with the chat template) for
        `transformers.AutoTokenizer`.

        Args:
            folder: an existing folder.

        Returns:
            The contents of the generation_config.json that belongs to it: bos, eos and pad ids.

        Raises:
            DataError: the vocabulary is damaged or not of SmolLM's kind of byte-level BPE.
        """
        tokens, types, ids = self._vocabulary()
        try:
            tokenizer = byte_level_bpe(tokens, types, self._required("tokenizer.ggml.merges"))
        except DataError:
            raise
        except Exception as error:  # the tokenizers library's, for merges of tokens that it lacks
            raise DataError(
                f"{self.path}: the metadata field tokenizer.ggml.merges cannot be used ({error}):"
                " copy the file again"
            ) from error
        tokenizer.save(str(folder / "tokenizer.json"))
        values = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.config.max_positions,
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
            **{name: tokens[i] for name, i in ids.items()},
        }
        template = self.field("tokenizer.chat_template")
        values |= {} if template is None else {"chat_template": template}
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
        generation = {f"{name}_id": ids[name] for name in ("bos_token", "pad_token") if name in ids}
        eos = list(self.config.eos_ids)
        return generation | ({"eos_token_id": eos[0] if len(eos) == 1 else eos} if eos else {})

    def _vocabulary(self) -> tuple[list[str], list[int], dict[str, int]]:
        """Returns the tokens, llama.cpp's type of each, and the ids of the special ones."""
        kind = self._required("tokenizer.ggml.model")
        pre = self.field("tokenizer.ggml.pre", "default")
        if (kind, pre) != ("gpt2", "smollm"):
            raise DataError(
                f"{self.path}: a tokenizer of kind {kind!r} with pre-tokenizer {pre!r} is not"
                " supported: take the tokenizer's files from the model's original Hugging Face"
                " folder"
            )
        self._check(_VOCABULARY)
        tokens = self._required("tokenizer.ggml.tokens")
        types = self.field("tokenizer.ggml.token_type", [1] * len(tokens))
        ids = {name: self.field(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL.items()}
        ids = {name: i for name, i in ids.items() if i is not None}
        fits = len(types) == len(tokens) == len(set(tokens))
        if not fits or any(i >= len(tokens) for i in ids.values()):
            raise DataError(
                f"{self.path}: the metadata fields tokenizer.ggml.tokens, token_type and *_token_id"
                " do not fit together: tokens must differ, have one type each, and include those"
                " that are named"
            )
        return tokens, types, ids


def _shortest(value: float) -> float:
    """Returns the shortest decimal of a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def byte_level_bpe(tokens: list[str], types: list[int], merges: list[str]) -> Any:
    """Builds a tokenizer with SmolLM's pre-tokenizer: single digits, then words as in GPT-2.

    llama.cpp splits in this way for `tokenizer.ggml.pre = smollm`. The GGUF reader of transformers
    (5.23) does not separate digits, and differs if two or more spaces precede a digit.

    Args:
        tokens: the vocabulary, in the byte alphabet of GPT-2; the index is the id.
        types: llama.cpp's type of each token; control and user-defined tokens are never split.
        merges: "left right" pairs, best first.

    Returns:
        A `tokenizers.Tokenizer`.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        tokenizers.AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    return tokenizer
