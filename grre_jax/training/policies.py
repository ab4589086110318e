"""Stored policies: the checkpoints of runs and model folders, to sample and export, also as Hugging
Face folders with the benchmark splits that they were trained on; and the log-probs of stored
completions under a policy, for rescoring, the KL to the start and ranking by likelihood.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

import grre_jax
from grre_jax import models
from grre_jax.errors import DataError, UsageError
from grre_jax.models.checkpoints.adapters import save_adapter
from grre_jax.models.checkpoints.huggingface import fingerprint
from grre_jax.models.logprobs import token_logprobs
from grre_jax.models.source import ModelSource
from grre_jax.parallel import mesh as meshes, processes
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.rollouts import Group
from grre_jax.rollouts.tools.rescoring import Scorer
from grre_jax.storage import files
from grre_jax.training import build, run_folder
from grre_jax.training.checkpoints import Checkpoints, listed
from grre_jax.training.config.run import Config, with_fields
from grre_jax.training.data.pack import BatchShape, PackedBatch, pack
from grre_jax.training.run_folder import load_config, split_step

# Tokens per packed row, doubled until the longest completion fits, so that few shapes are compiled.
SCORER_ROW_TOKENS = 1024


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
    parts, params, step = policy_at(folder, load_config(folder), step)
    contains = build.contents(folder / "provenance.json")
    write_model(parts, params, output, step=step, contains=contains, adapter=adapter)
    return step


def policy_at(
    folder: Path, config: Config, step: int | None = None
) -> tuple[build.Parts, Any, int]:
    """Returns (parts, all parameters, step) of a run's checkpoint, laid out over all devices.

    Args:
        folder: the run.
        config: its configuration; model.dtype and model.compute_dtype may differ from the run's.
        step: of the checkpoint; the last if None.

    Raises:
        DataError: the run's model or its checkpoints are missing or damaged.
    """
    parts = build.build(dataclasses.replace(config, mesh=MeshConfig()))
    (params,), (step,) = policies_at(folder, parts, (step,))
    return parts, params, step


def policies_at(
    folder: Path, parts: build.Parts, steps: Sequence[int | None]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Returns (parameters at each of the steps, those steps) of a run; None stands for the last
    checkpoint.

    Raises:
        DataError: the run has no checkpoints, or not that of a step.
    """
    checkpoints = folder / "checkpoints"
    kept = listed(checkpoints)
    if not kept:
        raise DataError(f"run {folder} has no complete checkpoint yet: let it train first")
    numbers = tuple(kept[-1] if step is None else step for step in steps)
    # Without an optimizer's state: only parameters are read.
    with contextlib.closing(Checkpoints(checkpoints, read_only=True)) as opened:
        read = [opened.restore_params(parts.trained, step) for step in numbers]
    return tuple(map(parts.full, read)), numbers


def load(
    path: str, fields: Mapping[str, Any], step: int | None = None
) -> tuple[build.Parts, Any, int | None]:
    """Returns (parts, all parameters, step) of a model, whose step is None, or of a run's
    checkpoint, laid out over all devices.

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
        return parts, parts.params, None


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
    options = {field: value for field, value in dtypes.items() if value}
    parts, params, step = load(path, options, step)
    source = parts.config.model
    model = nnx.merge(parts.graph, params)

    def score(groups: Sequence[Group], temperature: float) -> list[Float[np.ndarray, " tokens"]]:
        # The longest prompt and completion, which may be of two groups, must fit one row.
        longest = max(len(group.prompt_tokens) for group in groups)
        longest += max(int(group.lengths.max()) for group in groups)
        row = SCORER_ROW_TOKENS
        while row < longest:
            row *= 2
        return score_groups(
            parts.graph,
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
    model = nnx.merge(parts.graph, params)
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


# Tokens of a packed row: the cost of attention grows with their square. Rows have 64, 128, 256 or
# 512 tokens, or a multiple of 512, so that data of any lengths compiles few programs.
LEAST_ROW_TOKENS = 64
ROW_TOKENS = 512
TOKENS_PER_CALL = 2048  # enough to keep products large; more only needs memory


@partial(jax.jit, static_argnums=0)
def _score(graph: Any, params: Any, rows: tuple[Array | None, ...], temperature: Array) -> Array:
    return token_logprobs(nnx.merge(graph, params), *rows, temperature)


def score_groups(
    graph: Any,
    params: Any,
    groups: Sequence[Group],
    mesh: Mesh,
    *,
    temperature: float = 1.0,
    groups_per_call: int = 16,
    pack_length: int = 0,
) -> list[Float[np.ndarray, " tokens"]]:
    """Computes the log-prob of every completion token of every group, 0 where the token's mask is
    0. The processes of a run pass the same groups, and each returns all log-probs.

    Args:
        graph, params: the two halves of a model.
        groups: tokenised groups.
        mesh: rows are cut over its data and fsdp axes.
        temperature: divides the logits.
        groups_per_call: groups packed at once.
        pack_length: tokens per packed row; 0 for a size that fits the groups, of few.

    Returns:
        Per group an array parallel to its `tokens`, float32 nats.
    """
    # The completions of an environment that did not begin have no tokens.
    numbers = [i for i, group in enumerate(groups) if len(group.tokens)]
    results = [np.zeros(0, np.float32) for _ in groups]
    if not numbers:
        return results
    scored = [groups[i] for i in numbers]
    shape = _shape_for(scored, groups_per_call, pack_length, meshes.row_devices(mesh))
    for start in range(0, len(scored), groups_per_call):
        chunk = scored[start : start + groups_per_call]
        batch = pack(chunk, shape, behavior_logprobs=False)
        scores = _scores(graph, params, batch, mesh, temperature)
        for i, row in zip(numbers[start:], _by_group(scores, batch, chunk), strict=False):
            results[i] = row
    return results


def _shape_for(
    groups: Sequence[Group], groups_per_call: int, pack_length: int, devices: int
) -> BatchShape:
    """Returns a shape that fits the groups. The programs depend on its rows and their tokens, which
    take few values.
    """
    prompt = max(len(g.prompt_tokens) for g in groups)
    new = max(int(g.lengths.max()) for g in groups)
    if not pack_length:
        # A row must hold the longest completion with its prompt. Beyond that short rows pack more
        # tightly: a long group is split over several.
        longest = max(len(g.prompt_tokens) + len(g.tokens) for g in groups)
        pack_length = _row_size(max(prompt + new, min(longest, ROW_TOKENS)))
    samples = max(len(g.lengths) for g in groups)
    full_shape = BatchShape.of_run(groups_per_call, samples, prompt, new, pack_length, 0)
    most = max(1, TOKENS_PER_CALL // pack_length)
    rows = min(_power_of_two(full_shape.rows), 1 << most.bit_length() - 1)
    rows = -(-rows // devices) * devices
    return dataclasses.replace(full_shape, rows=rows, micro_batches=-(-full_shape.rows // rows))


def _row_size(tokens: int) -> int:
    """Returns the least size of a row that holds this many tokens."""
    if tokens > ROW_TOKENS:
        return -(-tokens // ROW_TOKENS) * ROW_TOKENS
    return max(LEAST_ROW_TOKENS, _power_of_two(tokens))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _scores(
    graph: Any, params: Any, batch: PackedBatch, mesh: Mesh, temperature: float
) -> Float[np.ndarray, " places"]:
    """Returns the log-probs of the batch's tokens, without those of empty micro-batches at its
    end.
    """
    fields = (batch.tokens, batch.positions, batch.segment_ids, batch.prefix_ids, batch.sources)
    pieces = []
    for i, mask in enumerate(batch.mask):
        if not mask.any():
            break
        rows = tuple(processes.put(x[i], meshes.rows(mesh)) for x in fields)
        with meshes.use(mesh):
            scores = _score(graph, params, rows, np.float32(temperature))
        pieces.append(processes.fetch(scores))
    return np.concatenate(pieces).reshape(-1)


def _by_group(
    scores: Float[np.ndarray, " places"], batch: PackedBatch, groups: Sequence[Group]
) -> list[Float[np.ndarray, " tokens"]]:
    """Returns the scores of a batch as arrays parallel to its groups' tokens."""
    mask = batch.mask.reshape(-1)[: scores.size]
    owner = batch.response_ids.reshape(-1)[: scores.size]
    # A response's tokens are in one row and in order; responses are numbered in the order of the
    # groups.
    values = scores[mask][np.argsort(owner[mask], kind="stable")]
    results = []
    for group in groups:
        generated = group.mask != 0
        part, values = np.split(values, [generated.sum()])
        result = np.zeros(len(group.tokens), np.float32)
        result[generated] = part
        results.append(result)
    return results
