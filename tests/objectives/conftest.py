"""What the tests of the objectives share: float64, cases drawn by hypothesis in fixed shapes, the gradient of an objective on a case."""

from dataclasses import dataclass, replace

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from grre_jax import objectives
from grre_jax.objectives.algorithms import PART_NUMBERS
from grre_jax.objectives.objective import Objective

# One shape, so that examples test values and not the compiler: interleaved groups of two, three and one, arbitrary ids, padding.
GROUPS = (7, 3, 7, 3, 3, 11, -1)
TIME = 4


@dataclass(frozen=True)
class Case:
    """A batch before advantages: arrays [responses, time] and [responses], and numbers for whichever objective wants them."""

    logprobs: np.ndarray
    old: np.ndarray
    mask: np.ndarray
    rewards: np.ndarray
    groups: np.ndarray
    tau: float = 0.7
    beta: float = 0.3

    def replace(self, **changes) -> "Case":
        return replace(self, **changes)


def _rewards(responses: int):
    finite = st.floats(-10, 10, allow_subnormal=False)
    return st.one_of(
        hnp.arrays(np.float64, responses, elements=st.sampled_from([0.0, 1.0]), fill=st.nothing()),
        hnp.arrays(np.float64, responses, elements=finite, fill=st.nothing()),
        finite.map(lambda reward: np.full(responses, reward)),
        hnp.arrays(np.float64, responses, elements=st.integers(-1_000_000, 1_000_000).map(float), fill=st.nothing()),
    )


@st.composite
def _cases(draw):
    shape = (len(GROUPS), TIME)
    old = draw(hnp.arrays(np.float64, shape, elements=st.floats(-8, 0, allow_subnormal=False)))
    moved = draw(hnp.arrays(np.float64, shape, elements=st.floats(-2, 2, allow_subnormal=False), fill=st.nothing()))
    return Case(
        logprobs=old + moved,
        old=old,
        mask=draw(hnp.arrays(bool, shape)),
        rewards=draw(_rewards(len(GROUPS))),
        groups=np.array(GROUPS),
        tau=draw(st.floats(0.05, 5)),
        beta=draw(st.floats(-2, 2, allow_subnormal=False)),
    )


@pytest.fixture(scope="session")
def cases():
    """Strategy of cases."""
    return _cases()


@pytest.fixture(scope="session")
def example() -> Case:
    """One case in general position: mixed rewards, ratios inside and outside every range, masked tokens."""
    generator = np.random.default_rng(7)
    old = generator.normal(-2, 1, (len(GROUPS), TIME))
    rewards = np.array([0.0, 1.0, 2.5, 0.0, 0.0, 1.0, 4.0])
    return Case(old + generator.normal(0, 0.8, old.shape), old, generator.random(old.shape) < 0.8, rewards, np.array(GROUPS))


@pytest.fixture(scope="module")
def float64():
    """Runs a module's tests in float64."""
    with jax.enable_x64(True):
        yield


class Gradients:
    """Gradients and metrics of an objective on a case, with respect to its log-probs, jitted.

    Each instance compiles for itself: what an older one has compiled does not see a formula that was changed since.
    """

    def __init__(self):
        # The tests' time is the compiler's, so it is told not to optimise.
        quick = {"compiler_options": {"xla_backend_optimization_level": 0}}

        def gradient(objective, logprobs, batch, stats):
            def loss(logprobs):
                return objectives.policy_loss(objective, logprobs, batch, stats)

            (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(logprobs)
            return gradient, metrics

        self._gradient = jax.jit(gradient, **quick)
        self._shape = jax.jit(lambda *arguments: objectives.shape_data(*arguments), **quick)
        self.stats = jax.jit(lambda batch: objectives.batch_stats(batch), **quick)
        self.surrogate = jax.jit(jax.value_and_grad(objectives.surrogate_loss), static_argnames="form", **quick)
        self.pointwise = jax.jit(jax.grad(objectives.pointwise_loss), **quick)

    def shaped(self, objective, case: Case, key=0):
        """Advantages and dropped responses of the case; `key` is a seed or [responses] keys."""
        key = jax.random.key(key) if isinstance(key, int) else key
        # Shaping looks at the advantage alone: algorithms that share one share its compilation.
        numbers = {name: objective.numbers[name] for name in PART_NUMBERS.get(objective.advantage, ())}
        objective = Objective("", objective.advantage, "one", "none", (), "token", "all", objective.single, numbers)
        return self._shape(objective, jnp.asarray(case.rewards), jnp.asarray(case.groups), key)

    def batch(self, case: Case, shaped) -> objectives.Batch:
        """The case with its advantages."""
        return objectives.padded_batch(
            advantages=shaped.advantages, dropped=shaped.dropped, mask=case.mask, groups=case.groups, old_logprobs=case.old
        )

    def both(self, objective, case: Case, shaped=None, stats=None, key=0):
        """The gradient [responses, time] and the metrics; of a micro-batch if `stats` are given."""
        batch = self.batch(case, shaped or self.shaped(objective, case, key))
        gradient, metrics = self._gradient(objective, jnp.asarray(case.logprobs), batch, stats or self.stats(batch))
        return np.asarray(gradient), {name: float(value) for name, value in metrics.items()}

    def __call__(self, objective, case: Case, advantages=None, key=0):
        """The gradient [responses, time]; `advantages` replaces those of the objective."""
        shaped = None if advantages is None else objectives.ShapedData(jnp.asarray(advantages), None)
        return self.both(objective, case, shaped, key=key)[0]


@pytest.fixture(scope="session")
def gradient() -> Gradients:
    """`gradient(objective, case)`: [responses, time]."""
    return Gradients()


@pytest.fixture(scope="session")
def new_gradient() -> type[Gradients]:
    """Makes a `gradient` that has compiled nothing yet."""
    return Gradients


def _assert_close(actual, expected, tolerance=1e-9, scale=0.0):
    expected = np.asarray(expected)
    largest = max(np.abs(expected).max(initial=0), scale, 1e-6)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * largest)


@pytest.fixture(scope="session")
def assert_close():
    """`assert_close(actual, expected, tolerance, scale)`: equal to a share of the largest entry (or of `scale`)."""
    return _assert_close
