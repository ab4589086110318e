"""A policy as a Hugging Face folder: configuration, safetensors, tokenizer, and what it was trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flax import nnx

from grre_jax import models
from grre_jax.training import setup


def write_model(parts: setup.Parts, graph: Any, params: Any, output: Path, *, step: int, contains: Iterable[str]) -> None:
    """Writes the policy as a folder that transformers loads, and grre_provenance.json beside the weights.

    Args:
        parts: of the run.
        graph, params: the two halves of the model.
        output: the folder to write; it must not exist, or be empty.
        step: the policy's version.
        contains: benchmark splits that the policy was trained on.

    Raises:
        UsageError: `output` is taken.
    """
    path = parts.config.model.path
    models.save(nnx.merge(graph, params), output, tokenizer_from=path or None)
    if not path:
        parts.tokenizer.save(output)
    provenance = {"run": parts.config.name, "step": step, "contains": sorted(contains)}
    (output / "grre_provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")
