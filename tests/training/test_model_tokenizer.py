"""The tokenizer beside a model's weights, or inside its file."""

import numpy as np
import pytest

from grre_jax import tasks
from grre_jax.errors import DataError, UsageError
from grre_jax.training.model_tokenizer import load_model_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


@pytest.fixture
def gguf_file(tmp_path):
    """The metadata of a Llama with a byte-level tokenizer, and the one tensor that its shape is read from."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("transformers")
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(b if b in printable else next(others)) for b in range(256)), "he"]

    def write(pre="smollm"):
        writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
        for name, value in {
            "block_count": 1,
            "embedding_length": 8,
            "feed_forward_length": 8,
            "head_count": 1,
            "context_length": 32,
        }.items():
            getattr(writer, f"add_{name}")(value)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3] * 3 + [1] * 257)
        writer.add_token_merges(["h e"])
        writer.add_eos_token_id(2)
        writer.add_chat_template(TEMPLATE)
        writer.add_tensor("token_embd.weight", np.zeros((260, 8), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / "model.gguf"

    return write


def test_the_tokenizer_inside_a_gguf_file(gguf_file):
    path = gguf_file()
    for place in (path, path.parent):
        tokenizer = load_model_tokenizer(place)
        assert tokenizer.render("he") == "<|im_start|>he<|im_end|><|im_start|>" and tokenizer.encode_prompt("he") == [1, 259, 2, 1]
        assert tokenizer.eos_ids == (2,) and tokenizer.folder == place
    assert load_model_tokenizer(path, "hh").encode_prompt("he")[:4] == [1, *[tokenizer.tokenizer.get_vocab()["h"]] * 2, 2]
    assert [file.name for file in path.parent.iterdir()] == ["model.gguf"]


def test_files_beside_a_gguf_file_go_first(gguf_file):
    path = gguf_file()
    tasks.CharTokenizer().save(path.parent)
    assert isinstance(load_model_tokenizer(path.parent), tasks.CharTokenizer)
    assert isinstance(load_model_tokenizer(path), tasks.ChatTokenizer)


def test_what_cannot_be_used(gguf_file, tmp_path):
    with pytest.raises(DataError, match="pre-tokenizer 'qwen2' is not supported"):
        load_model_tokenizer(gguf_file("qwen2"))
    tasks.CharTokenizer().save(tmp_path / "digits")
    with pytest.raises(UsageError, match="no chat template"):
        load_model_tokenizer(tmp_path / "digits", "Be brief.")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no tokenizer"):
        load_model_tokenizer(tmp_path / "empty")
