"""The tokenizer that comes with a model, in whichever form the model is stored."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from grre_jax import tasks
from grre_jax.models.huggingface import locate


def load_model_tokenizer(path: str | os.PathLike, system_prompt: str | None = None) -> tasks.Tokenizer:
    """The tokenizer of a model folder, or the one inside a GGUF file.

    Args:
        path: a Hugging Face folder, a .gguf file, or a folder that holds one such file and no tokenizer's files.
        system_prompt: as for `tasks.load_tokenizer`.

    Raises:
        DataError: nothing there, or a tokenizer that is damaged or of a kind that is not supported.
        UsageError: a system prompt for a tokenizer without a chat template, or a package that is needed and not installed.
    """
    path = Path(path)
    inside = path.suffix == ".gguf" or (path.is_dir() and not (path / "tokenizer_config.json").exists() and any(path.glob("*.gguf")))
    if not inside:
        return tasks.load_tokenizer(path, system_prompt=system_prompt)
    from grre_jax.models.gguf import GGUFFile

    with tempfile.TemporaryDirectory(prefix="grre-tokenizer-") as work:
        folder = Path(work)
        generation = GGUFFile(locate(path)[1] or path).write_tokenizer(folder)
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
        tokenizer = tasks.ChatTokenizer(folder, system_prompt)
    tokenizer.folder = path  # what its messages name
    return tokenizer
