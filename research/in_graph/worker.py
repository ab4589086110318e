"""Tasks of a study's worker processes: warm starts and runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from grre_jax import models
from grre_jax.objectives import Objective, algorithm
from research.in_graph import run as graph_run, warm_start
from research.in_graph.batch import Scale
from research.in_graph.run import Curves, Inputs, Schedule
from research.machine import machine_line
from research.runs import Entry, Program, Result, Run


@dataclasses.dataclass(frozen=True)
class Menu:
    """The objectives of a study, one per structure: algorithms that differ in numbers alone share
    an index.

    Attributes:
        objectives: the first of each structure.
        indices: index into them by label.
        own: objective by label.
    """

    objectives: tuple[Objective, ...]
    indices: Mapping[str, int]
    own: Mapping[str, Objective]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Menu:
        """Returns the menu of a study's entries."""
        own = {
            entry.label: jax.tree.map(jnp.float32, algorithm(entry.name, **entry.options))
            for entry in entries
        }
        structures = {label: jax.tree.structure(objective) for label, objective in own.items()}
        distinct = list(dict.fromkeys(structures.values()))
        indices = {label: distinct.index(structure) for label, structure in structures.items()}
        first = {index: own[label] for label, index in reversed(indices.items())}
        return cls(tuple(first[index] for index in range(len(distinct))), indices, own)

    def chosen(self, label: str) -> tuple[int, tuple[Objective, ...]]:
        """Returns the index of an algorithm, and the objectives with its numbers there."""
        index, objectives = self.indices[label], list(self.objectives)
        objectives[index] = self.own[label]
        return index, tuple(objectives)


@dataclasses.dataclass(frozen=True)
class Bench:
    """Everything that a worker needs to make runs; its methods are the tasks of a process pool.

    Args:
        scale: the sizes.
        entries: the study's algorithms.
        folder: of the warm starts.
    """

    scale: Scale
    entries: tuple[Entry, ...]
    folder: Path

    def warm(self, number: int) -> tuple[Any, dict[str, float]]:
        """Returns the parameters and figures of a warm start, which is made if it does not
        exist.
        """
        path = warm_path(self.folder, number)
        if not path.exists():
            warm_start.make(self.scale, number, path)
        return warm_start.load(path)

    def curves(self, program: Program, runs: Sequence[Run]) -> list[Curves]:
        """Returns the runs' curves; several are computed side by side."""
        menu, width = Menu.of(self.entries), len(runs) if len(runs) > 1 else 0
        inputs = [self._inputs(run, menu) for run in runs]
        simulate = graph_run.compiled(self.scale, program.steps, program.fill, program.ring, width)
        if len(runs) == 1:
            return [jax.device_get(simulate(inputs[0]))]
        curves = jax.device_get(simulate(jax.tree.map(lambda *x: jnp.stack(x), *inputs)))
        return [jax.tree.map(lambda x, i=i: x[i], curves) for i in range(len(runs))]

    def result(self, run: Run, curves: Curves) -> Result:
        """Returns what the ledger keeps of a run: each check, pass@8 at the start and at the end,
        and the mean of two readings since the last check; None for a number that is not finite.
        """
        kept = {name: np.asarray(values, float) for name, values in curves.checks.items()}
        _, figures = self.warm(run.seed)
        kept["pass_at_8"] = np.array([figures["pass_at_8"], curves.pass_at_8])
        for name in ("entropy", "clip_fraction"):
            values, every = np.asarray(curves.steps[name], float), self.scale.every
            kept[name] = np.array(
                [values[at : at + every].mean() for at in range(0, values.size, every)]
            )
        return {
            name: [round(x, 6) if math.isfinite(x) else None for x in values.tolist()]
            for name, values in kept.items()
        }

    def make_runs(self, program: Program, runs: Sequence[Run]) -> list[Result]:
        """Returns what the ledger keeps of the runs."""
        pairs = zip(runs, self.curves(program, runs), strict=True)
        return [self.result(run, curves) for run, curves in pairs]

    def save_policy(self, output: Path, program: Program, runs: Sequence[Run]) -> Result:
        """Computes the first of the runs again, writes its final policy as a Hugging Face folder,
        and returns what the ledger would keep of it.
        """
        curves = self.curves(program, runs)[0]
        params = jax.tree.map(jnp.asarray, curves.params)
        models.save(nnx.merge(self.scale.graph, params), output)
        self.scale.task.tokenizer.save(output)
        return self.result(runs[0], curves)

    def _inputs(self, run: Run, algorithms: Menu) -> Inputs:
        choice, menu = algorithms.chosen(run.algorithm)
        plan = jax.tree.map(jnp.int32, Schedule.of(run.regime, run.stored))
        start, _ = self.warm(run.seed)
        (entry,) = (entry for entry in self.entries if entry.label == run.algorithm)
        return Inputs(
            choice=jnp.int32(choice),
            objectives=menu,
            learning_rate=jnp.float32(run.learning_rate),
            ess_exponent=jnp.float32(entry.ess_exponent),
            schedule=plan,
            seed=jnp.int32(run.seed),
            start=jax.tree.map(jnp.asarray, start),
        )


def warm_path(folder: Path, number: int) -> Path:
    """Returns the file of a warm start."""
    return folder / f"start_{number}.npz"


def describe() -> tuple[str, str]:
    """Returns the platform that the process computes on, as jax names it, and its machine."""
    return jax.default_backend(), machine_line()
