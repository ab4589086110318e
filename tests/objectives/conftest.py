"""What the tests of the objectives share: cases drawn by hypothesis, gradients of an objective
on a case, perturbations.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from grre_jax import objectives
from grre_jax.objectives import composition

from .all_objectives import components_of
from .drawn_cases import QUICK, Case


@pytest.fixture(scope="session")
def example() -> Case:
    """One case in general position: mixed rewards, ratios inside and outside every range, masked
    tokens.
    """
    generator = np.random.default_rng(7)
    old = generator.normal(-2, 1, (7, 4))
    rewards = np.array([0.0, 1.0, 2.5, 0.0, 0.0, 1.0, 4.0])
    return Case(
        old + generator.normal(0, 0.8, old.shape),
        old,
        generator.random(old.shape) < 0.8,
        rewards,
        np.array([7, 3, 7, 3, 3, 11, -1]),
    )


@pytest.fixture(scope="module")
def float64():
    """Runs a module's tests in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def without_metrics():
    """Losses with few metrics: the others take a quarter of the compiler's time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("clip_metrics", "ratio_metrics", "reference_metrics"):
            patch.setattr(composition, name, lambda *_: {})
        yield


def _loss_of_objective(logprobs, objective, fields, advantages, dropped):
    batch = objectives.padded_batch(advantages=advantages, dropped=dropped, **fields)
    return objectives.policy_loss(objective, logprobs, batch)


def _shape(objective, rewards, groups, key, lengths):
    return objectives.shape_data(
        objective, rewards, groups, key, lengths, components_of(rewards, groups)
    )


REINFORCE = objectives.algorithm("reinforce")


def _with_own_numbers(changed):
    """The objective with the hyperparameters of its parts alone."""
    names = {each.name for part in changed.parts for each in part.hyperparameters}
    numbers = {name: changed.hyperparameters[name] for name in sorted(names)}
    return replace(changed, hyperparameters=numbers)


def shaping_of(objective):
    """The objective's advantage with the loss of REINFORCE: one program for all that share it."""
    names = ("advantage", "shaping", "singleton_baseline", "components", "hyperparameters")
    return _with_own_numbers(
        replace(REINFORCE, **{name: getattr(objective, name) for name in names})
    )


def loss_of(objective):
    """The objective's loss with the advantage of REINFORCE: one program for all that share it."""
    names = ("advantage", "shaping", "singleton_baseline", "components")
    return _with_own_numbers(
        replace(objective, **{name: getattr(REINFORCE, name) for name in names})
    )


class Gradients:
    """Gradients and metrics of an objective on a case, jitted, with respect to its log-probs."""

    def __init__(self):
        def differentiate(loss, logprobs, arguments):
            def of(logprobs):
                return loss(logprobs, *arguments)

            (value, metrics), slope = jax.value_and_grad(of, has_aux=True)(logprobs)
            return value, slope, metrics

        self._differentiate = jax.jit(differentiate, static_argnums=0, **QUICK)
        self._shape = jax.jit(_shape, **QUICK)

    def of(self, loss, case: Case, *arguments):
        """Value and gradient of `loss(logprobs, *arguments)`, which returns a value and a dict."""
        value, slope, _ = self._differentiate(loss, case.logprobs, arguments)
        return float(value), np.asarray(slope)

    def shaped(self, objective, case: Case, key=0):
        """Advantages and dropped responses of the case; `key` is a seed."""
        lengths = case.live.sum(1).astype(float)
        return self._shape(
            shaping_of(objective), case.rewards, case.groups, jax.random.key(key), lengths
        )

    def batch(self, case: Case, shaped) -> objectives.Batch:
        """The case with its advantages."""
        return objectives.padded_batch(
            advantages=shaped.advantages, dropped=shaped.dropped, **case.fields()
        )

    def both(self, objective, case: Case, shaped=None):
        """The gradient and the metrics."""
        shaped = shaped or self.shaped(objective, case)
        arguments = (loss_of(objective), case.fields(), shaped.advantages, shaped.dropped)
        _, slope, metrics = jax.device_get(
            self._differentiate(_loss_of_objective, case.logprobs, arguments)
        )
        return np.asarray(slope), {name: float(value) for name, value in metrics.items()}

    def __call__(self, objective, case: Case):
        """The gradient."""
        return self.both(objective, case)[0]


@pytest.fixture(scope="session")
def gradient() -> Gradients:
    """`gradient(objective, case)`: [responses, time]."""
    return Gradients()


def _assert_close(actual, expected, tolerance=1e-9):
    largest = max(np.abs(expected).max(initial=0), 1)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * largest)


@pytest.fixture(scope="session")
def assert_close():
    """`assert_close(actual, expected, tolerance)`: equal to a share of the largest entry, or of 1."""
    return _assert_close
