"""Policies that score stored completions: a model, or a run's checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float

import grre_jax
from grre_jax import models, parallel
from grre_jax.errors import DataError
from grre_jax.models.checkpoints.huggingface import fingerprint
from grre_jax.models.source import ModelSource
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.rollouts import Group
from grre_jax.rollouts.tools.rescore import Scorer
from grre_jax.storage import store_path
from grre_jax.tasks import Tokenizer, load_tokenizer
from grre_jax.tasks.provenance import template_digest
from grre_jax.training import build
from grre_jax.training.config.run import Config
from grre_jax.training.evaluation import finished
from grre_jax.training.evaluation.completion_logprobs import score_groups

# Tokens per packed row, doubled until the longest completion fits, so that few shapes are compiled.
ROW_TOKENS = 1024


def find_scorer(name: str, *, dtype: str = "", compute_dtype: str = "") -> Scorer:
    """Loads a policy, on all devices.

    Args:
        name: a Hugging Face folder, or a run's folder or URL for its last checkpoint,
            or with a colon and a step ("runs/a:40").
        dtype, compute_dtype: of parameters and activations; if empty the run's, or float32 and the
            parameters'.

    Raises:
        UsageError: an unknown dtype.
        DataError: the model, run or checkpoint is missing or damaged.
    """
    path, step = split_step(name)
    run = finished.load_config(path) if finished.is_run(path) else None
    if run is None and step is not None:
        raise DataError(f"{path} is a model, which has no steps: name it without :{step}")
    source = run.model if run else ModelSource(path=str(path))
    source = dataclasses.replace(
        source, dtype=dtype or source.dtype, compute_dtype=compute_dtype or source.compute_dtype
    )
    graph, params, tokenizer, mesh, step = _loaded(path, source, run, step)
    model = nnx.merge(graph, params)

    def score(groups: Sequence[Group], temperature: float) -> list[Float[np.ndarray, " tokens"]]:
        longest, row = max(len(g.prompt_tokens) + int(g.lengths.max()) for g in groups), ROW_TOKENS
        while row < longest:
            row *= 2
        return score_groups(
            graph,
            params,
            groups,
            mesh,
            temperature=temperature,
            groups_per_call=len(groups),
            pack_length=row,
        )

    computed = source.compute_dtype or source.dtype
    described: dict[str, Any] = {
        "model": str(path),
        "step": step,
        "fingerprint": fingerprint(model),
        "tokenizer": tokenizer.fingerprint,
        "chat_template": template_digest(tokenizer),
        "parameters": source.dtype,
        "engine": f"grre_jax.score {grre_jax.__version__}",
    }
    num_ids = model.num_ids or model.config.vocab_size
    return Scorer(score, tokenizer, num_ids, model.config.max_positions, computed, described)


def _loaded(
    path: Path | store_path.StorePath, source: ModelSource, run: Config | None, step: int | None
) -> tuple[Any, Any, Tokenizer, Any, int | None]:
    """Returns (static half of the model, parameters, tokenizer, mesh, step)."""
    if run:
        parts, graph, params, step = finished.policy_at(
            path, dataclasses.replace(run, model=source), step
        )
        return graph, params, parts.tokenizer, parts.mesh, step
    tokenizer, mesh = (
        load_tokenizer(path),
        parallel.make_mesh(MeshConfig()),
    )
    dtype, compute = build.dtypes(source)
    model = models.load(path, dtype=dtype, compute_dtype=compute, mesh=mesh)
    model.limit_ids(tokenizer.vocab_size)
    graph, state = nnx.split(model)
    return graph, nnx.to_pure_dict(state), tokenizer, mesh, step


def split_step(name: str) -> tuple[Path | store_path.StorePath, int | None]:
    """Returns ("runs/a", 40) for "runs/a:40"; a name that exists as it is has no step."""
    before, colon, after = name.rpartition(":")
    if colon and after.isdecimal() and not store_path.of(name).exists():
        return store_path.of(before), int(after)
    return store_path.of(name), None
