"""The checkpoint of another run that a new run starts from: `--start-from RUN[:STEP]`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import processes
from grre_jax.training import build, mirror
from grre_jax.training import optimizer as training_optimizer
from grre_jax.training import state as states
from grre_jax.training.checkpoints.folder import Checkpoints, Keep, read_params
from grre_jax.training.config.run import Config
from grre_jax.training.run_folder import load_config, split_step


@dataclasses.dataclass(frozen=True)
class Start:
    """A checkpoint that a run starts from.

    Attributes:
        folder: path or URL of the other run.
        step: of the checkpoint.
        moments: the optimizer's moments are taken too; otherwise the parameters alone.
        contains: benchmark splits that the other run has seen.
    """

    folder: str
    step: int
    moments: bool
    contains: frozenset[str]

    def provenance(self) -> dict[str, Any]:
        """Returns the run, step and use of the moments, for provenance.json."""
        return {"run": self.folder, "step": self.step, "moments": self.moments}

    def line(self) -> str:
        """Returns a line for the run's header."""
        moments = "with its moments" if self.moments else "without moments: another optimizer"
        return f"step {self.step} of {self.folder}, {moments}"

    def state(
        self, like: states.TrainState, optimizer: optax.GradientTransformation, mesh: Mesh
    ) -> states.TrainState:
        """Returns the run's state at step 0.

        Args:
            like: the run's own new state, whose arrays are deleted.
            optimizer: of the run.
            mesh: over which the state is laid out.

        Raises:
            DataError: the checkpoint is damaged, or was removed.
        """
        like = states.release(like)
        with mirror.copied(self.folder, steps=[self.step]) as copy:
            if not self.moments:
                params = read_params(copy / "checkpoints", self.step, like.params)
                return states.fresh(params, optimizer, mesh)
            checkpoints = Checkpoints(copy / "checkpoints", Keep(1), read_only=True)
            restored = checkpoints.restore(like, self.step)
            checkpoints.close()

        # The schedule of the learning rate begins anew; the moments keep the count of their
        # updates, by which their bias is corrected.
        def zero(count: jax.Array) -> jax.Array:
            return processes.put(np.int32(0), count.sharding)

        def is_schedule(part: Any) -> bool:
            return isinstance(part, optax.ScaleByScheduleState)

        opt_state = jax.tree.map(
            lambda part: part._replace(count=zero(part.count)) if is_schedule(part) else part,
            restored.opt_state,
            is_leaf=is_schedule,
        )
        return states.TrainState(restored.params, opt_state, zero(restored.step))


def find(config: Config, parts: build.Parts) -> Start | None:
    """Returns the checkpoint that a run starts from, checked without reading its arrays; None if
    the run does not start from another.

    Args:
        config, parts: of the new run.

    Raises:
        UsageError: a step that the other run did not keep, or a model of another shape.
        DataError: the folder is not a run's, or has no checkpoints.
    """
    if not config.start_from:
        return None
    folder, step = split_step(config.start_from)
    with mirror.copied(folder) as copy:
        other = load_config(copy)
        contains = frozenset(build.contents(copy / "provenance.json"))
    kept = mirror.steps(folder)
    if not kept:
        raise DataError(
            f"start_from: expected a run with checkpoints, got {folder}. Let it train first"
        )
    if step is not None and step not in kept:
        raise UsageError(
            f"start_from: expected a step that {folder} keeps ({', '.join(map(str, kept))}), got"
            f" {step}. Give one of these"
        )
    own, its = _model(config), _model(other)
    if own != its:
        raise UsageError(
            "start_from: expected a run with the model of this configuration (its shape and"
            " low-rank terms; with these also model.path, and a model.adapter that has an embedding"
            f" or a head), {own}, got {folder} with {its}. Give the fields of its model section"
            " (`grre train CONFIG --print-config` shows yours)"
        )
    params = states.split(parts.model)[1]
    new, old = (
        jax.tree.flatten(
            jax.eval_shape(training_optimizer.make_optimizer(c.optimizer).init, params)
        )
        for c in (config, other)
    )
    return Start(folder, kept[-1] if step is None else step, new == old, contains)


def _model(config: Config) -> tuple[Any, ...]:
    """Returns what two runs share if one starts from the other's parameters."""
    shape, lora = build.model_shape(config)
    return shape, lora, lora and config.model.path
