"""What is done with a run that has checkpoints: evaluation of its first and last policy, and export."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grre_jax import reporting
from grre_jax.config import Config, differences, from_dict
from grre_jax.errors import DataError, UsageError
from grre_jax.overrides import override
from grre_jax.parallel import processes
from grre_jax.training import loop, setup
from grre_jax.training.checkpoint import Checkpoints
from grre_jax.training.evaluate import evaluate, refuse_contaminated
from grre_jax.training.export import write_adapter, write_model
from grre_jax.training.ranking import held_out_groups, ranking, save_ranking
from grre_jax.training.state import create, make_optimizer

# What may differ between a run and an evaluation of it.
EVALUATION_FIELDS = ("data.", "evaluation.", "mesh.", "run_dir", "sampling.", "task.")


def load_config(folder: Path) -> Config:
    """The configuration of the run in `folder`.

    Raises:
        DataError: the folder is no run, or its config.json cannot be read.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise DataError(f"{folder} is not a run folder: it has no config.json")
    try:
        return from_dict(json.loads(file.read_text()))
    except (TypeError, ValueError) as error:
        raise DataError(f"{file} cannot be read as a configuration: {error}") from error


def evaluate_run(folder: Path, overrides: Sequence[str] = (), console: Any = None) -> dict[str, Any]:
    """Evaluates a run's first and last policy side by side and writes evaluation.json into its folder. Several processes do it together.

    Args:
        folder: the run.
        overrides: configuration fields as on the command line, such as --evaluation.questions 1000.
        console: a rich console; standard output if None.

    Returns:
        What was written: sampled accuracy of both policies with intervals and, where evaluation.ranking_questions names some, the ranking.

    Raises:
        UsageError: an override that is wrong, or an evaluation on a benchmark split that the training data holds.
        DataError: the folder is no run or lacks checkpoints.
    """
    from rich.table import Table

    console = console if console and processes.is_first() else reporting.progress.make_console(quiet=not processes.is_first())
    stored = load_config(folder)
    config = dataclasses.replace(override(stored, overrides), run_dir=str(folder))
    changed = differences(dataclasses.asdict(stored), dataclasses.asdict(config))
    if other := [name for name in changed if not name.startswith(EVALUATION_FIELDS)]:
        raise UsageError(
            f"grre evaluate takes no other {', '.join(other)}: only fields under {', '.join(EVALUATION_FIELDS)} may differ from the run's"
        )
    parts = setup.build(config)
    graph, first, last, step = _policies(folder, config, parts)
    result: dict[str, Any] = {"steps": [0, step]}
    if config.evaluation.questions:
        refuse_contaminated(_contents(folder), getattr(parts.task, "evaluation_source", ""), allowed=config.evaluation.allow_contaminated)
        questions = parts.task.evaluation(config.evaluation.questions)
        explorer = loop.evaluation_explorer(parts, graph)
        result |= {
            "questions": len(questions),
            "first": evaluate(explorer, first, first, questions, step=0),
            "last": evaluate(explorer, last, first, questions, step=step),
        }
        table = Table("policy", "step", "accuracy", "95% interval", "KL to the start", "length")
        for name, at in (("first", 0), ("last", step)):
            row = result[name]
            table.add_row(
                name,
                str(at),
                f"{row['accuracy']:.1%}",
                f"{row['accuracy_low']:.1%} to {row['accuracy_high']:.1%}",
                f"{row['kl_to_start']:.4f}",
                f"{row['response_length']:.1f}",
            )
        console.print(table)
    groups = held_out_groups(parts)
    shares = [ranking(graph, params, groups, parts.mesh) for params in (first, last)] if groups else []
    if processes.is_first():
        if groups:
            save_ranking(folder, *shares, groups, console)
        (folder / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def export(folder: Path, output: Path, step: int | None = None, *, adapter: bool = False) -> int:
    """Writes a run's policy as a Hugging Face folder with its tokenizer, and grre_provenance.json beside them. LoRA weights are merged into their base.

    Args:
        folder: the run.
        output: the folder to write; it must not exist, or be empty.
        step: which checkpoint; the last if None.
        adapter: write the LoRA weights alone, as a folder that PEFT loads.

    Returns:
        The step that was exported.

    Raises:
        UsageError: `output` is taken, or there is no adapter to write.
        DataError: the run or the checkpoint is missing.
    """
    config = load_config(folder)
    parts = setup.build(config)
    graph, _, params, step = _policies(folder, config, parts, step)
    write = write_adapter if adapter else write_model
    write(parts, graph, params, output, step=step, contains=_contents(folder))
    return step


def _policies(folder: Path, config: Config, parts: setup.Parts, step: int | None = None) -> tuple[Any, Any, Any, int]:
    """(graph, first parameters, parameters at `step`, step); the last checkpoint if step is None."""
    if not (folder / "checkpoints").is_dir():
        raise DataError(f"run {folder} has no checkpoints yet: let it train first")
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint.keep, read_only=True)
    if not checkpoints.steps:
        raise DataError(f"run {folder} has no complete checkpoint yet: let it train first")
    step = checkpoints.steps[-1] if step is None else step
    graph, state = create(parts.model, make_optimizer(config.optimizer), parts.mesh)
    policies = (checkpoints.restore_params(state.params, 0), checkpoints.restore_params(state.params, step))
    checkpoints.close()
    return graph, *map(parts.full, policies), step


def _contents(folder: Path) -> set[str]:
    """Benchmark splits that the run's training data holds, the exported model's own past included."""
    file = folder / "provenance.json"
    if not file.is_file():
        return set()
    try:
        return set(json.loads(file.read_text())["contains"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be read ({error!r}): restore it, since it says which benchmarks the run has seen") from error
