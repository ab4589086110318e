"""Policies written as Hugging Face folders: configuration, safetensors, tokenizer and the
benchmark splits that the policy was trained on.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flax import nnx

from grre_jax import models
from grre_jax.errors import UsageError
from grre_jax.models.checkpoints.adapters import save_adapter
from grre_jax.parallel import processes
from grre_jax.storage import files
from grre_jax.training import build


def write_model(
    parts: build.Parts,
    graph: Any,
    params: Any,
    output: Path,
    *,
    step: int,
    contains: Iterable[str],
    adapter: bool = False,
) -> None:
    """Writes the policy as a folder that transformers loads, with LoRA weights merged into it; or
    the LoRA weights alone (with the embedding and the head of model.adapter, if it has them), as a
    folder that PEFT loads on top of the model at model.path. Beside the weights is
    grre_provenance.json.

    All processes of a run call it; the first writes.

    Args:
        parts: have the tokenizer and the provenance that are written beside the weights.
        graph: the static half of the model.
        params: all parameters of the model.
        output: the folder to write; it does not exist or is empty.
        step: the policy's version.
        contains: benchmark splits that the policy was trained on.
        adapter: the LoRA weights alone.

    Raises:
        UsageError: `output` exists and is not empty; or the run has no adapter, or no model.path
            that it belongs to.
    """
    path = parts.config.model.path
    name = parts.config.name
    if adapter and not (parts.model.lora and path):
        raise UsageError(
            f"--adapter: expected a run of LoRA terms (model.lora_rank) of a model folder"
            f" (model.path), got {name}. Leave it out"
        )
    model = nnx.merge(graph, params)
    if adapter:
        save_adapter(model, output, base=str(Path(path).resolve()))
    else:
        models.save(model, output, tokenizer_from=path or None)

    def complete() -> None:
        if not path:
            parts.tokenizer.save(output)
        provenance: dict[str, Any] = {"run": name, "step": step, "contains": sorted(contains)}
        if arguments := parts.config.model.template_arguments:
            provenance["template_arguments"] = arguments
        files.replace(output / "grre_provenance.json", json.dumps(provenance, indent=2) + "\n")

    processes.on_first(complete)
