"""A small new chat model whose tokens are bytes, and one of arithmetic whose tokens are
characters.
"""

import pytest

from .. import byte_tokenizers

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content']"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPE = dict(
    hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8
)


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    """A Hugging Face folder: a layer of random weights, 256 byte tokens and three special
    ones, a chat template, room for 160 tokens.
    """
    pytest.importorskip("transformers")
    from grre_jax import models

    files, folder = tmp_path_factory.mktemp("tokenizer"), tmp_path_factory.mktemp("models") / "chat"
    byte_tokenizers.save(files, CHATML)
    config = models.ModelConfig(vocab_size=259, **SHAPE, eos_ids=(258,), max_positions=160)
    models.save(models.init(config), folder, tokenizer_from=files)
    return folder


@pytest.fixture(scope="session")
def digit_model(tmp_path_factory):
    """A Hugging Face folder of a model with a character tokenizer, which has no chat template."""
    from grre_jax import models, tasks

    folder = tmp_path_factory.mktemp("models") / "digits"
    config = models.ModelConfig(vocab_size=17, **SHAPE, eos_ids=(16,), max_positions=64)
    models.save(models.init(config), folder)
    tasks.CharTokenizer().save(folder)
    return folder
