"""Downloads of models from the Hugging Face Hub."""

import os
from pathlib import Path

from grre_jax.errors import UsageError

# What a Hugging Face folder needs here: configurations, weights, tokenizers and chat templates.
FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def fetch(repo: str, folder: str | os.PathLike | None = None, revision: str | None = None) -> Path:
    """Downloads a model or an adapter from the Hugging Face Hub.

    Args:
        repo: its name, such as "HuggingFaceTB/SmolLM2-135M-Instruct".
        folder: to write; the Hub's own cache if None.
        revision: a branch, tag or commit; the main branch if None.

    Returns:
        The folder.

    Raises:
        UsageError: `repo` is not a name, is not on the Hub or cannot be read, or the Hub cannot be
            reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = snapshot_download(
            repo, revision=revision, local_dir=folder, allow_patterns=list(FILES)
        )
        return Path(path)
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UsageError(
            f"model: expected a folder or a name on the Hugging Face Hub, got {repo!r}"
            f" ({str(error).strip().splitlines()[0]})."
        ) from error
