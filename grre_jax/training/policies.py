"""Stored policies: the checkpoints of runs and model folders, to sample, score and export; and
policies written as Hugging Face folders, with the benchmark splits that they were trained on.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optax
from flax import nnx
from jaxtyping import Float

import grre_jax
from grre_jax import models
from grre_jax.errors import DataError, UsageError
from grre_jax.models.checkpoints.adapters import save_adapter
from grre_jax.models.checkpoints.huggingface import fingerprint
from grre_jax.models.source import ModelSource
from grre_jax.parallel import processes
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.rollouts import Group
from grre_jax.rollouts.tools.rescore import Scorer
from grre_jax.storage import files
from grre_jax.training import build, run_folder
from grre_jax.training.checkpoints import listed, read_params
from grre_jax.training.completion_logprobs import score_groups
from grre_jax.training.config.run import Config, with_fields
from grre_jax.training.run_folder import load_config, split_step
from grre_jax.training.state import create

# Tokens per packed row, doubled until the longest completion fits, so that few shapes are compiled.
ROW_TOKENS = 1024


def is_run(path: Path) -> bool:
    """Returns True for a run's folder (its config.json is a run's, or it has checkpoints), False
    for a model's.

    Raises:
        DataError: the path is neither.
    """
    file = path / "config.json"
    if not file.is_file():
        raise DataError(f"{path} is not a run folder, nor a model: it has no config.json")
    return (path / "checkpoints").is_dir() or '"run_dir"' in file.read_text(errors="replace")


def export(folder: Path, output: Path, step: int | None = None, *, adapter: bool = False) -> int:
    """Writes a run's policy as a Hugging Face folder with its tokenizer and grre_provenance.json.
    LoRA weights are merged into their base.

    Args:
        folder: the run.
        output: folder to write; it must not exist, or be empty.
        step: step of the checkpoint; the last if None.
        adapter: write the LoRA weights alone, as a folder that PEFT loads.

    Returns:
        The exported step.

    Raises:
        UsageError: `output` exists, or no adapter to write.
        DataError: the run or the checkpoint is missing.
    """
    parts, graph, params, step = policy_at(folder, load_config(folder), step)
    contains = build.contents(folder / "provenance.json")
    write_model(parts, graph, params, output, step=step, contains=contains, adapter=adapter)
    return step


def policy_at(
    folder: Path, config: Config, step: int | None = None
) -> tuple[build.Parts, Any, Any, int]:
    """Returns (parts, static half of the model, all parameters, step) of a run's checkpoint, laid
    out over all devices.

    Args:
        folder: the run.
        config: its configuration; model.dtype and model.compute_dtype may differ from the run's.
        step: of the checkpoint; the last if None.

    Raises:
        DataError: the run's model or its checkpoints are missing or damaged.
    """
    parts = build.build(dataclasses.replace(config, mesh=MeshConfig()))
    graph, (params,), (step,) = policies_at(folder, parts, (step,))
    return parts, graph, params, step


def policies_at(
    folder: Path, parts: build.Parts, steps: Sequence[int | None]
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """Returns (static half of the model, parameters at each of the steps, those steps) of a run;
    None stands for the last checkpoint.

    Raises:
        DataError: the run has no checkpoints, or not that of a step.
    """
    checkpoints = folder / "checkpoints"
    kept = listed(checkpoints)
    if not kept:
        raise DataError(f"run {folder} has no complete checkpoint yet: let it train first")
    found = tuple(kept[-1] if step is None else step for step in steps)
    # Without an optimizer's state: only parameters are read.
    graph, state = create(parts.model, optax.identity(), parts.mesh)
    policies = tuple(parts.full(read_params(checkpoints, step, state.params)) for step in found)
    return graph, policies, found


def load(
    path: str, fields: Mapping[str, Any], step: int | None = None
) -> tuple[build.Parts, Any, Any, int | None]:
    """Returns (parts, static half of the model, all parameters, step) of a model, whose step is
    None, or of a run's checkpoint, laid out over all devices.

    Args:
        path: a Hugging Face folder, or a run's folder or URL.
        fields: of the section `model` that differ from the run's.
        step: of the checkpoint; the last if None.

    Raises:
        UsageError: an unknown dtype.
        DataError: the model, run or checkpoint is missing or damaged.
    """
    with run_folder.copied(path, steps=[step]) as folder:
        if is_run(folder):
            config = with_fields(load_config(folder), {"model": fields})
            return policy_at(folder, config, step)
        if step is not None:
            raise DataError(f"{path} is a model, which has no steps: name it without :{step}")
        config = with_fields(Config("model", model=ModelSource(path=path)), {"model": fields})
        parts = build.build(config)
        graph, state = nnx.split(parts.model)
        return parts, graph, nnx.to_pure_dict(state), None


def find_scorer(name: str, dtype: str = "", compute_dtype: str = "") -> Scorer:
    """Loads a policy, on all devices.

    Args:
        name: a Hugging Face folder, or a run's folder or URL for its last checkpoint,
            or with a colon and a step ("runs/a:40").
        dtype, compute_dtype: of parameters and activations; if empty the run's, or float32 and the
            parameters'.

    Raises:
        UsageError, DataError: as of `load`.
    """
    path, step = split_step(name)
    dtypes = {"dtype": dtype, "compute_dtype": compute_dtype}
    given = {field: value for field, value in dtypes.items() if value}
    parts, graph, params, step = load(path, given, step)
    source = parts.config.model
    model = nnx.merge(graph, params)

    def score(groups: Sequence[Group], temperature: float) -> list[Float[np.ndarray, " tokens"]]:
        # The longest prompt and completion, which may be of two groups, must fit one row.
        longest = max(len(group.prompt_tokens) for group in groups)
        longest += max(int(group.lengths.max()) for group in groups)
        row = ROW_TOKENS
        while row < longest:
            row *= 2
        return score_groups(
            graph,
            params,
            groups,
            parts.mesh,
            temperature=temperature,
            groups_per_call=len(groups),
            pack_length=row,
        )

    return Scorer(
        score,
        parts.tokenizer,
        model.num_ids or model.config.vocab_size,
        model.config.max_positions,
        source.compute_dtype or source.dtype,
        {
            "model": path,
            "step": step,
            "fingerprint": fingerprint(model),
            "tokenizer": parts.tokenizer.fingerprint,
            "parameters": source.dtype,
            "engine": f"grre_jax.score {grre_jax.__version__}",
        },
    )


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
