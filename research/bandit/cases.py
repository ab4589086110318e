"""The three-arm bandit: the limit of a policy that learns from a fixed behaviour policy's data,
under each objective.

A softmax policy over three arms, data always from pi_b = (.3, .6, .1), rewards (0, .8, 1). Arm 3 is
the best, but arm 2 is drawn six times as often: pi_b(2) (r(2) - mean) = .132 > pi_b(3) (r(3) -
mean) = .042, so plain REINFORCE ends at arm 2. From "Group-Relative REINFORCE Is Secretly an
Off-Policy Algorithm" (https://arxiv.org/abs/2509.24203), whose surrogate, minimised fully, ends at
pi_b exp(r / tau) / Z.

Two kinds of updates, both the library's own (`shape_data`, `padded_batch`, `policy_loss`,
differentiated through a log-softmax):
- expected: one group of ten responses of one token in which the arms appear 3, 6 and 1 times, so
  that the group's proportions are pi_b. This is the limit of large groups wherever an update
  depends on proportions only;
- sampled: groups of ten drawn from pi_b (`bandit_study`).
Data, old, proximal and reference log-probs are those of pi_b.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from grre_jax import objectives
from research import surrogate

BEHAVIOR = (0.3, 0.6, 0.1)
REWARDS = (0.0, 0.8, 1.0)
COUNTS = (3, 6, 1)
BEST = 2
# Responses of an expert, who always plays the best arm, where an objective learns from one: a group
# of their own.
EXPERT = 1
# Rows are orthonormal and orthogonal to (1, 1, 1): a softmax does not see that direction, and no
# gradient points along it.
PLANE = np.array([[-1.0, 1.0, 0.0], [-1.0, -1.0, 2.0]]) / np.sqrt([[2.0], [6.0]])

STARTS = {
    "behavior": BEHAVIOR,
    "uniform": (1 / 3,) * 3,
    "arm 1": (0.98, 0.01, 0.01),
    "arm 2": (0.01, 0.98, 0.01),
    "arm 3": (0.01, 0.01, 0.98),
}
# Numbers without a default, and one that a group of ten cannot express: its smallest share of
# tokens is one in ten.
CHOSEN = {
    "dr_grpo": {"constant_length": 1.0},
    "grpo_two_sided": {"delta": 4.0},
    "dro": {"dro_beta": 0.1},
    "gvpo": {"gvpo_beta": 0.1},
    "r2vpo": {"variance_coef": 0.1},
    "clip_cov": {"covariance_fraction": 0.1},
    "kl_cov": {"covariance_fraction": 0.1},
}
# Beside its defaults: settings that the paper uses, and variants that differ where a response is
# one token.
SETTINGS = {
    "rec_oneside_nois": ({"epsilon_low": 0.6, "epsilon_high": 2.0},),
    "opmd": ({"variant": "openkimi"},),
    "opmd_logavgexp": ({"variant": "leave_one_out"},),
    "cispo": ({"variant": "epsilon"},),
    "chord": ({"variant": "phi"},),
    "reinforce_pp": ({"variant": "returns"},),
}
SURROGATE = "surrogate"
# It reads no reward: it would stay at its reference, the behaviour policy.
LEFT_OUT = ("distill",)

Logits = Float[Array, "3"]
Loss = Callable[
    [Mapping[str, Array], Logits, Int[Array, " responses"], PRNGKeyArray], Float[Array, ""]
]


@dataclass(frozen=True)
class Case:
    """One objective to minimise.

    Attributes:
        name: an algorithm's, or `SURROGATE`.
        structure: its structural options.
        numbers: its numbers; those given and the defaults.
        given: which of the numbers are not defaults.
        requires: data that the loss needs besides rewards.
        draws: whether shaping the data draws at random.
    """

    name: str
    structure: Mapping[str, str]
    numbers: Mapping[str, float]
    given: tuple[str, ...] = ()
    requires: frozenset[str] = frozenset()
    draws: bool = False

    @property
    def label(self) -> str:
        """The name and what is not default."""
        given = (f"{number}={self.numbers[number]:g}" for number in self.given)
        return " ".join([self.name, *self.structure.values(), *given])

    def accepts(self, number: str, value: float) -> bool:
        """True if the library accepts this value."""
        if self.name == SURROGATE:
            return value > 0
        try:
            objectives.algorithm(self.name, **self.structure, **{**self.numbers, number: value})
        except ValueError:
            return False
        return True


def cases(names: Sequence[str] | None = None) -> list[Case]:
    """Returns every algorithm of the library that learns from rewards, with its settings here, and
    both forms of the surrogate.

    Args:
        names: only these, in this order.

    Returns:
        The cases.

    Raises:
        ValueError: for a name that is neither an algorithm nor `SURROGATE`, or is `LEFT_OUT`.
    """
    found = []
    learning = [name for name in objectives.algorithms() if name not in LEFT_OUT]
    for name in names if names is not None else (*learning, SURROGATE):
        if name in LEFT_OUT:
            raise ValueError(f"{name} reads no reward: a bandit has nothing else to learn from")
        if name == SURROGATE:
            found += [
                Case(name, {"form": form}, {"tau": 0.1}, ("tau",))
                for form in ("pairwise", "variance")
            ]
            continue
        for setting in ({}, *SETTINGS.get(name, ())):
            options = {**CHOSEN.get(name, {}), **setting}
            structure = {
                option: value for option, value in options.items() if isinstance(value, str)
            }
            objective = objectives.algorithm(name, **options)
            given = tuple(option for option in options if option not in structure)
            numbers = {number: float(value) for number, value in objective.hyperparameters.items()}
            found.append(
                Case(name, structure, numbers, given, objective.requires, objective.needs_key)
            )
    return found


def loss_of(case: Case) -> Loss:
    """Returns the library's loss of a policy with these logits on these draws: a function of
    (numbers, logits, arms, key).
    """

    def minimised(numbers, logits, arms, key):
        logprobs, behavior = jax.nn.log_softmax(logits)[arms], jnp.log(jnp.asarray(BEHAVIOR))[arms]
        groups = jnp.zeros(arms.shape, jnp.int32)
        data = (logprobs, behavior, jnp.asarray(REWARDS)[arms], groups)
        return surrogate.surrogate_loss(*data, **case.structure, tau=numbers["tau"])

    def policy(numbers, logits, arms, key):
        objective = objectives.algorithm(case.name, **case.structure, **numbers)
        experts = EXPERT if "expert" in case.requires else 0
        arms = jnp.concatenate([arms, jnp.full(experts, BEST, arms.dtype)])
        expert = jnp.arange(arms.size) >= arms.size - experts
        groups = expert.astype(jnp.int32)
        rewards = jnp.asarray(REWARDS)[arms]
        behavior = jnp.log(jnp.asarray(BEHAVIOR))[arms][:, None]
        shaped = objectives.shape_data(
            objective, rewards, groups, key, jnp.ones(arms.size), {"reward": rewards}
        )
        batch = objectives.padded_batch(
            advantages=shaped.advantages,
            dropped=shaped.dropped,
            rewards=rewards,
            mask=jnp.ones((arms.size, 1), bool),
            groups=groups,
            old_logprobs=behavior,
            prox_logprobs=behavior,
            ref_logprobs=behavior,
            expert=expert,
            staleness=jnp.ones(arms.size),
        )
        logprobs = jax.nn.log_softmax(logits)[arms][:, None]
        return objectives.policy_loss(objective, logprobs, batch)[0]

    return minimised if case.name == SURROGATE else policy


def update(case: Case) -> Loss:
    """Returns minus the gradient of `loss_of(case)` with respect to the logits: a function of
    (numbers, logits, arms, key) returning [3].
    """
    gradient = jax.grad(loss_of(case), argnums=1)
    return lambda numbers, logits, arms, key: -gradient(numbers, logits, arms, key)


def policies(points: Float[Array, "... 2"]) -> Float[np.ndarray, "... 3"]:
    """Returns the policies of points of `PLANE`."""
    logits = np.asarray(points) @ PLANE
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
