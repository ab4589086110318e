"""Evaluation of a run's first and last policy, and export of its policies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx

from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import processes
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.reporting.evaluation_tables import print_evaluations
from grre_jax.reporting.outcome import Evaluation, outcome, sentences
from grre_jax.storage.files import write_whole
from grre_jax.storage.store_path import StorePath
from grre_jax.training import build
from grre_jax.training.actors.prompts import evaluation_questions
from grre_jax.training.checkpoints.folder import opened
from grre_jax.training.checkpoints.retention import Keep
from grre_jax.training.config.overrides import override
from grre_jax.training.config.run import Config, differences, from_dict
from grre_jax.training.evaluation.evaluate import (
    answer,
    figures,
    make_evaluator,
    refuse_contaminated,
)
from grre_jax.training.evaluation.pass_at_k import pass_metrics
from grre_jax.training.evaluation.ranking import held_out_groups, ranking, save_ranking
from grre_jax.training.export import write_adapter, write_model
from grre_jax.training.state import create

# Fields that may differ between a run and an evaluation of it.
EVALUATION_FIELDS = ("data.", "evaluation.", "mesh.", "run_dir", "sampling.", "task.")


def load_config(folder: Path | StorePath) -> Config:
    """Returns the configuration of the run in `folder`.

    Raises:
        DataError: the folder is not a run's, or its config.json cannot be read.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise DataError(f"{folder} is not a run folder: it has no config.json")
    try:
        return from_dict(json.loads(file.read_text()))
    except (TypeError, ValueError) as error:
        raise DataError(f"{file} cannot be read as a configuration: {error}") from error


def is_run(path: Path | StorePath) -> bool:
    """Returns True for a run's folder (its config.json is a run's, or it has checkpoints), False
    for a model's.

    Raises:
        DataError: the path is neither.
    """
    if isinstance(path, StorePath) and not (path / "checkpoints").is_dir():
        raise DataError(
            f"{path} is not a run folder: it has no checkpoints/; copy a model at a URL to a disk"
            " first"
        )
    if not (path / "config.json").is_file():
        raise DataError(f"{path} is not a run folder, nor a model: it has no config.json")
    try:
        stored = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        stored = None
    return (isinstance(stored, dict) and "run_dir" in stored) or (path / "checkpoints").is_dir()


def evaluate_run(
    folder: Path | StorePath, overrides: Sequence[str] = (), console: Any = None
) -> dict[str, Any]:
    """Evaluates a run's first and last policy and writes evaluation.json into its folder; with
    evaluation.ranking_questions, ranking.json too. Several processes may share the work.

    Args:
        folder: the run.
        overrides: configuration fields as on the command line, such as --evaluation.questions 1000.
        console: a rich console; standard output if None.

    Returns:
        The contents of evaluation.json: accuracy, greedy accuracy, pass@k and maj@k of both
        policies with intervals.

    Raises:
        UsageError: an invalid override, or an evaluation on a benchmark split that the training
            data contains.
        DataError: the folder is not a run's or has no checkpoints.
    """
    if not console or not processes.is_first():
        console = make_console(quiet=not processes.is_first())
    config = _evaluation_config(folder, overrides)
    parts = build.build(config)
    graph, (first, last), (_, step) = _policies(folder, config, parts, (0, None))
    result: dict[str, Any] = {"steps": [0, step]}
    if config.evaluation.questions:
        refuse_contaminated(
            run_contents(folder),
            getattr(parts.task, "evaluation_source", ""),
            allowed=config.evaluation.allow_contaminated,
        )
        questions = evaluation_questions(config, parts.task, parts.tokenizer)
        evaluator = make_evaluator(parts, graph)
        result |= {"questions": len(questions), "sampling": evaluator.settings}
        for name, params, at in (("first", first, 0), ("last", last, step)):
            groups, greedy = answer(evaluator, params, questions, step=at)
            row = figures(evaluator, groups, greedy, first)
            result[name] = row | pass_metrics(groups, parts.task)
        print_evaluations({"first": (0, result["first"]), "last": (step, result["last"])}, console)
        for sentence in _compared(result, step):
            console.print(sentence, markup=False, highlight=False)
    groups = held_out_groups(parts)
    shares = (
        [ranking(graph, params, groups, parts.mesh) for params in (first, last)] if groups else []
    )

    def write() -> None:
        if groups:
            save_ranking(folder, *shares, groups, console)
        write_whole(folder / "evaluation.json", json.dumps(result, indent=2) + "\n")

    processes.on_first(write)
    return result


def _evaluation_config(folder: Path | StorePath, overrides: Sequence[str]) -> Config:
    stored = load_config(folder)
    config = dataclasses.replace(override(stored, overrides), run_dir=str(folder))
    changed = differences(dataclasses.asdict(stored), dataclasses.asdict(config))
    if other := [name for name in changed if not name.startswith(EVALUATION_FIELDS)]:
        raise UsageError(
            f"grre evaluate of a run takes only fields under {', '.join(EVALUATION_FIELDS)}, got"
            f" {', '.join(other)}"
        )
    return config


def _compared(result: dict[str, Any], step: int) -> list[str]:
    """Compares the last policy with the first, in sentences."""
    rows = (result["first"], result["last"])
    measure = "accuracy" if all("accuracy" in row for row in rows) else "reward"

    def evaluations(name: str) -> list[Evaluation]:
        return [
            Evaluation(at, row[name], row[f"{name}_low"], row[f"{name}_high"])
            for at, row in zip((0, step), rows, strict=True)
        ]

    greedy = all("greedy_accuracy" in row for row in rows)
    found = outcome(
        measure, evaluations(measure), {}, evaluations("greedy_accuracy") if greedy else ()
    )
    return sentences(found) if found else []


def export(
    folder: Path | StorePath, output: Path, step: int | None = None, *, adapter: bool = False
) -> int:
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
        UsageError: `output` exists, or there is no adapter to write.
        DataError: the run or the checkpoint is missing.
    """
    config = load_config(folder)
    parts = build.build(config)
    graph, (params,), (step,) = _policies(folder, config, parts, (step,))
    write = write_adapter if adapter else write_model
    write(parts, graph, params, output, step=step, contains=run_contents(folder))
    return step


def policy(folder: Path | StorePath, config: Config) -> tuple[Transformer, int]:
    """Returns the model of a run's last checkpoint, on the first device, and its step.

    Args:
        folder: the run.
        config: its configuration; model.dtype and model.compute_dtype may differ from the run's.

    Raises:
        DataError: the run's model or its checkpoints are missing or damaged.
    """
    _, graph, params, step = policy_at(folder, config)
    return nnx.merge(graph, jax.device_put(params, jax.local_devices()[0])), step


def policy_at(
    folder: Path | StorePath, config: Config, step: int | None = None
) -> tuple[build.Parts, Any, Any, int]:
    """Returns (parts, static half of the model, all parameters, step) of a run's checkpoint, laid
    out over all devices.

    Args:
        folder, config: as for `policy`.
        step: of the checkpoint; the last if None.

    Raises:
        DataError: as `policy`.
    """
    parts = build.build(dataclasses.replace(config, mesh=MeshConfig()))
    graph, (params,), (step,) = _policies(folder, config, parts, (step,))
    return parts, graph, params, step


def _policies(
    folder: Path | StorePath, config: Config, parts: build.Parts, steps: Sequence[int | None]
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """Returns (graph, parameters at each of the steps, those steps); None stands for the last
    checkpoint.
    """
    if not (folder / "checkpoints").is_dir():
        raise DataError(f"run {folder} has no checkpoints yet: let it train first")
    checkpoints = opened(folder / "checkpoints", Keep(config.checkpoint.keep), read_only=True)
    if not checkpoints.steps:
        raise DataError(f"run {folder} has no complete checkpoint yet: let it train first")
    found = tuple(checkpoints.steps[-1] if step is None else step for step in steps)
    # Without an optimizer's state: only parameters are read.
    graph, state = create(parts.model, optax.identity(), parts.mesh)
    policies = tuple(parts.full(checkpoints.restore_params(state.params, step)) for step in found)
    checkpoints.close()
    return graph, policies, found


def run_contents(folder: Path | StorePath) -> set[str]:
    """Returns the benchmark splits in the run's training data, and in that of the model it began
    with.
    """
    file = folder / "provenance.json"
    if not file.is_file():
        return set()
    try:
        return set(json.loads(file.read_text())["contains"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} cannot be read ({error!r}): restore it, since it names the benchmarks in the"
            " run's training data"
        ) from error
