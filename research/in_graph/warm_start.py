"""Warm starts of a study's runs: tiny models that have imitated wrong demonstrations.

What is demonstrated bounds their accuracy (`in_graph.tasks`), and leaves something to learn from
reward. A warm start's figures are measured when it is finished, its learning rate's decay
included, and stored with it. Every seed has its own, weights and demonstrations, so that a study's
findings are not those of one model.
"""

from __future__ import annotations

import io
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Array

from grre_jax.errors import DataError
from grre_jax.objectives import algorithm
from grre_jax.random_streams import Purpose, run_key
from grre_jax.storage import files
from research.in_graph.batch import Drawn, Scale
from research.in_graph.run import (
    evaluated,
    gradient,
    optimizer,
    sampled_accuracy,
    updated,
)

BATCH = 128  # demonstrations a step
# The learning rate, its steps of warm-up, and the share of the steps in which it falls to 0.
RATE, WARMUP, DECAY = 4e-3, 20, 0.2
FROM = 1 << 31  # demonstrations lie in the second half of the question stream, runs in the first


def start_keys(number: Array | int) -> tuple[Array, Array]:
    """Returns the keys of a warm start's first weights and of its evaluations."""
    key = jax.random.fold_in(run_key(0, Purpose.STUDY_START), number)
    return (
        jax.random.fold_in(key, int(Purpose.INIT)),
        jax.random.fold_in(key, int(Purpose.EVALUATE)),
    )


def imitated(scale: Scale, number: Array) -> tuple[Any, dict[str, Array]]:
    """Returns the parameters after imitation and their figures; to be jitted with the first
    static.

    Imitation is AsymRE with beta = 1 on equal rewards, whose advantage is 1 everywhere.

    Args:
        scale: the sizes.
        number: which warm start.
    """
    task, (init, evaluate) = scale.task, start_keys(number)
    params, transformation, steps = scale.parameters(init), optimizer(), scale.imitation_steps
    imitate = (jax.tree.map(jnp.float32, algorithm("asymre", beta=1.0)),)
    ones, (end,) = jnp.ones(BATCH), task.tokenizer.eos_ids

    def step(carry: tuple[Any, Any], t: Array) -> tuple[tuple[Any, Any], None]:
        params, opt_state = carry
        position = (number * steps + t).astype(jnp.uint32) * np.uint32(BATCH) + jnp.arange(
            BATCH, dtype=jnp.uint32
        )
        position = position % np.uint32(FROM) + np.uint32(FROM)
        answers, prompts = task.demonstrations_batch(position), task.questions_batch(position)
        lengths = 1 + jnp.argmax(answers == end, axis=1).astype(jnp.int32)
        drawn = Drawn(prompts, answers, lengths, jnp.zeros(answers.shape), ones, jnp.int32(0))
        grads, _ = gradient(scale, params, params, jnp.int32(0), imitate, drawn, jnp.int32(0), init)
        left = (steps - 1 - t) / (DECAY * steps)
        rate = RATE * jnp.minimum(1, jnp.minimum((t + 1) / WARMUP, left))
        return updated(params, grads, opt_state, rate, transformation), None

    carry = (params, transformation.init(params))
    (params, _), _ = jax.lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))
    accuracy, solved = sampled_accuracy(scale, params, jax.random.fold_in(evaluate, 0))
    greedy = evaluated(scale, params, params, jax.random.fold_in(evaluate, 1))["greedy_accuracy"]
    return params, {"accuracy": accuracy, "greedy_accuracy": greedy, "pass_at_8": solved}


@lru_cache(maxsize=4)
def _compiled(scale: Scale) -> Any:
    return jax.jit(lambda number: imitated(scale, number))


def make(scale: Scale, number: int, path: Path) -> None:
    """Makes warm start `number` and writes it, with its figures. The file appears whole or not at
    all.
    """
    params, figures = jax.device_get(_compiled(scale)(jnp.int32(number)))
    arrays = traverse_util.flatten_dict({"params": params, "figures": figures}, sep="/")
    content = io.BytesIO()
    np.savez(content, **arrays)
    files.replace(path, content.getvalue())


@lru_cache(maxsize=16)
def load(path: Path) -> tuple[Any, dict[str, float]]:
    """Returns the parameters that `make` wrote, and their figures on the held-out questions:
    `accuracy`, `greedy_accuracy` and `pass_at_8`.

    Raises:
        DataError: if the file cannot be read.
    """
    try:
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored}
        content = traverse_util.unflatten_dict(arrays, sep="/")
        figures = {name: round(float(value), 6) for name, value in content["figures"].items()}
        return content["params"], figures
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"the warm start {path} cannot be read ({error}): remove it, and it is made again"
        ) from error
