"""A loss of the user's own: a function of a few lines, which gets everything the built-in
objectives get.

The function takes a `LossInputs` and returns one loss per token; its keyword-only arguments are its
hyperparameters, with their defaults. It is differentiated as written (use `jax.lax.stop_gradient`
for constants), after the mask has put zeros wherever nothing counts, and is aggregated, corrected,
filtered, penalised and measured like any other.

    def soft_clip(x, *, width=0.5):
        '''Importance weights that saturate.'''
        return -x.advantages * width * jnp.tanh(jnp.exp(x.log_ratio) / width)
"""

import functools
import inspect
import math
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from grre_jax.objectives.batch import TOKEN_FIELDS, Batch, Tokens, count_batch
from grre_jax.objectives.inputs import Contribution, LossInputs
from grre_jax.objectives.objective import RATIO, Hyperparameter, Objective, Part, Term, term

OwnLoss = Callable[..., Tokens]


def differentiated(own: Term, x: LossInputs, factor: Tokens | float = 1.0) -> Contribution:
    """Computes the contribution of a user's loss: its value, and the derivative that jax finds.

    Args:
        own: a term of `as_term`.
        x: the batch; only its `logprobs` carry gradient.
        factor: constants by which the losses of tokens are multiplied; the derivative has them, the
            value does not.

    Raises:
        ValueError: the function does not return one value per token.
    """
    values = {each.name: x.hyperparameters[each.name] for each in own.hyperparameters}

    def total(logprobs):
        losses = jnp.asarray(own(replace(x, logprobs=logprobs), **values))
        if losses.shape != logprobs.shape or not jnp.issubdtype(losses.dtype, jnp.floating):
            raise ValueError(
                f"{own.name} must return a loss for each of the {logprobs.size} tokens, a"
                f" floating-point number, not {losses.dtype} of shape {losses.shape}"
            )
        # Of inputs that are 0 a loss need not be 0, e.g. with a constant added.
        losses = jnp.where(x.mask, losses, 0)
        # The derivative of the sum: a loss may also depend on the other tokens of its response,
        # whose factors are others.
        return jnp.sum(factor * losses), losses

    (_, value), derivative = jax.value_and_grad(total, has_aux=True)(
        jax.lax.stop_gradient(x.logprobs)
    )
    return Contribution(value, derivative, jnp.ones(x.mask.shape, bool))


def as_term(function: OwnLoss) -> Term:
    """Makes a term of a user's loss, named after the function or its class.

    Args:
        function: takes a `LossInputs`, and its hyperparameters as keyword-only arguments.

    Returns:
        The `Term`, without the data that it reads (see `with_data`).

    Raises:
        ValueError: if a default is not a number, or the function does not take one positional
            argument.
    """
    name = getattr(function, "__name__", type(function).__name__)
    declared = []
    for argument, parameter in [*inspect.signature(function).parameters.items()][1:]:
        default = None if parameter.default is parameter.empty else parameter.default
        number = default is None or (isinstance(default, int | float) and math.isfinite(default))
        if parameter.kind is not parameter.KEYWORD_ONLY or not number:
            raise ValueError(
                f"{name} must take the batch and then hyperparameters by keyword, with finite"
                f" numbers as defaults, f(x, *, width=1.0), not {parameter}"
            )
        default = None if default is None else float(default)
        declared.append(Hyperparameter(argument, "a hyperparameter of your loss", default))
    return term(function, name=name, hyperparameters=tuple(declared), differentiated=True)


def with_data(objective: Objective) -> Objective:
    """Adds to the term of an objective, a user's loss, the optional data of a batch that it reads.

    They are found by tracing the function and its derivative on a batch of abstract arrays.

    Raises:
        ValueError: if it cannot be traced or differentiated, or does not return one value per
            token.
    """
    own_term = objective.term
    read = set()

    class Recording(LossInputs):
        @property
        def ratio_reference_logprobs(self) -> Array:
            read.add(RATIO)
            # What the ratio reference reads is not recorded: its own part declares it.
            return jnp.zeros_like(self.logprobs)

        def _present(self, name: str) -> Array:
            read.add(name)
            return super()._present(name)

    tokens = jnp.zeros(4)
    responses = jnp.zeros(2)
    optional = {name: tokens for name in TOKEN_FIELDS if name.endswith("_logprobs")}
    batch = Batch(
        mask=tokens == 0,
        response_ids=jnp.array([0, 0, 1, 1]),
        advantages=responses,
        group_ids=jnp.zeros(2, jnp.int32),
        rewards=responses,
        expert=responses == 0,
        staleness=responses,
        **optional,
    )

    def trace(logprobs, values):
        x = Recording(objective, logprobs, batch.mask, batch, count_batch(batch), values)
        # With its derivative, so that a loss that JAX cannot differentiate is refused here.
        return differentiated(own_term, x).value

    values = {name: jnp.zeros(()) for name in objective.hyperparameters}
    try:
        jax.eval_shape(trace, tokens, values)
    except ValueError:
        raise
    except Exception as error:  # the function is the user's: it may fail in any way, and is named
        raise ValueError(
            f"{own_term.name} cannot be traced: {type(error).__name__}: {error}"
        ) from error
    # Every batch has advantages, which are read like the optional data of responses.
    return replace(objective, term=replace(own_term, data=tuple(sorted(read - {"advantages"}))))


def load_object(where: str) -> Callable | Part:
    """Loads the object that `path/to/file.py:name` names.

    Args:
        where: a Python file and a name in it.

    Returns:
        A function, or a part.

    Raises:
        ValueError: if the file cannot be run, or has no such object, naming those that it has.
    """
    path, _, name = where.rpartition(":")
    file = Path(path).expanduser()
    try:
        values = _names(file, file.read_bytes())
    except Exception as error:  # the file is the user's: it may fail in any way, and is named
        message = f"{path} cannot be imported: {type(error).__name__}: {error}"
        raise ValueError(message) from error
    if not callable(values.get(name)):
        usable = [key for key, value in values.items() if callable(value)]
        raise ValueError(f"{path} has no function {name!r}; it has {', '.join(usable)}")
    return values[name]


@functools.cache
def _names(file: Path, content: bytes) -> dict[str, Any]:
    """Runs a version of a file once, and returns what it defines: the same function is the same
    objective and compiles once, an edited one is another.
    """
    return runpy.run_path(str(file))
