"""What the tests of the objectives share: a case, gradients of an objective on a case."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from grre_jax import objectives
from grre_jax.objectives import composition

from .all_objectives import components_of
from .drawn_cases import CLOSE, QUICK, Case, case_of


@pytest.fixture(scope="session")
def example() -> Case:
    """One case in general position: mixed rewards, ratios inside and outside every range, masked
    tokens.
    """
    return case_of(7, CLOSE).replace(ref=None, expert=None, staleness=None)


@pytest.fixture(scope="module")
def float64():
    """Runs a module's tests in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def without_metrics():
    """Losses with few metrics: the others take a quarter of the compiler's time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("clip_metrics", "ratio_metrics", "kl_metrics"):
            patch.setattr(composition, name, lambda *_: {})
        yield


def _differentiate(objective, logprobs, fields, advantages, dropped, index, part):
    batch = objectives.padded_batch(advantages=advantages, dropped=dropped, **fields)

    def loss(logprobs):
        if index is None:
            return objectives.policy_loss(objective, logprobs, batch)
        laid_out = batch.select_tokens(index)
        flat = logprobs.reshape(-1)[index]
        stats = objectives.batch_stats(laid_out, objective, jax.lax.stop_gradient(flat))
        return objectives.policy_loss(objective, flat[part], laid_out.select_tokens(part), stats)

    return jax.grad(loss, has_aux=True)(logprobs)


def _shape(objective, rewards, groups, key, lengths):
    return objectives.shape_data(
        objective, rewards, groups, key, lengths, components_of(rewards, groups)
    )


REINFORCE = objectives.algorithm("reinforce")
SHAPING = ("advantage", "shaping", "singleton_baseline", "components")


def with_parts_of(objective, other, *names):
    """The objective with these fields of another, and the hyperparameters of its parts alone: one
    program for all objectives that share the rest.
    """
    changed = replace(objective, **{name: getattr(other, name) for name in names})
    declared = {each.name for part in changed.parts for each in part.hyperparameters}
    numbers = {name: changed.hyperparameters[name] for name in sorted(declared)}
    return replace(changed, hyperparameters=numbers)


class Gradients:
    """Gradients and metrics of objectives on cases, with respect to log-probs.

    Each instance compiles for itself: what an older one has compiled does not see a formula that
    was changed since.
    """

    def __init__(self):
        # Of functions of their own: jax keeps programs by function.
        self._differentiate = jax.jit(partial(_differentiate), **QUICK)
        self._shape = jax.jit(partial(_shape), **QUICK)

    def shaped(self, objective, case: Case, key=0):
        """Advantages and dropped responses of the case; `key` is a seed, or a key a response."""
        key = jax.random.key(key) if isinstance(key, int) else key
        lengths = case.live.sum(1).astype(float)
        advantage = with_parts_of(REINFORCE, objective, *SHAPING, "hyperparameters")
        return self._shape(advantage, case.rewards, case.groups, key, lengths)

    def both(self, objective, case: Case, shaped=None, index=None, part=None):
        """The gradient and the metrics: of the tokens as they lie, or laid out by `index`, and of
        these of a `part`, with statistics of all.
        """
        shaped = shaped or self.shaped(objective, case)
        loss = with_parts_of(objective, REINFORCE, *SHAPING)
        shapes = (shaped.advantages, shaped.dropped, index, part)
        slope, metrics = self._differentiate(loss, case.logprobs, case.fields(), *shapes)
        return np.asarray(slope), {name: float(value) for name, value in metrics.items()}

    def __call__(self, objective, case: Case):
        """The gradient."""
        return self.both(objective, case)[0]


@pytest.fixture(scope="module")
def gradient() -> Gradients:
    """`gradient(objective, case)`: [responses, time]."""
    return Gradients()


def loss_and_gradient(objective, logprobs, **fields):
    """Of a `padded_batch` of the fields."""
    batch = objectives.padded_batch(**fields)

    def loss(logprobs):
        return objectives.policy_loss(objective, logprobs, batch)[0]

    return jax.value_and_grad(loss)(logprobs)


def assert_close(actual, expected, tolerance=1e-9):
    """Equal to a share of the largest entry, or of 1."""
    largest = max(np.abs(expected).max(initial=0), 1)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * largest)
