"""Every objective there is, computed together on one case, and how their gradients are compared."""

import jax
import jax.numpy as jnp
import numpy as np

from grre_jax import objectives

from .drawn_cases import QUICK

# Numbers that have no default.
REQUIRED = {
    "dr_grpo": {"constant_length": 3},
    "grpo_two_sided": {"delta": 4.0},
    "dro": {"dro_beta": 0.2},
    "gvpo": {"gvpo_beta": 0.1},
    "r2vpo": {"variance_coef": 0.1},
    "grpo_veto": {"veto_low": 0.5, "veto_high": 2.0},
}


# Parts that no row has by default.
PARTS = {
    "grpo": [
        {"correction": "tis_sequence", "singleton_baseline": "none"},
        {"correction": "bounded", "filter": "geometric"},
    ],
    "reinforce": [
        {"kl_coef": 0.1, "kl_estimator": estimator, "kl_reference": reference}
        for estimator, reference in (
            ("k1", "reference"),
            ("k2", "behavior"),
            ("k3", "reference"),
            ("k3", "behavior"),
            ("k3_is", "behavior"),
        )
    ],
    "red_drop": [
        {"aggregation": aggregation, "denominator": "kept"}
        for aggregation in ("token", "response", "group")
    ],
    "dapo": [{"max_length": 3, "overlong_buffer": 2}],
    "clip_cov": [{"covariance_fraction": 0.2}],
    "kl_cov": [{"covariance_fraction": 0.2}],
}


def every_objective(parts: bool = False) -> dict[str, objectives.Objective]:
    """Every algorithm in every variant, and with the parts that no row has by default if
    `parts`; by name.
    """
    chosen = {
        f"{row.name}-{variant}": objectives.algorithm(
            row.name, variant=variant, **REQUIRED.get(row.name, {})
        )
        for row in objectives.algorithm_table()
        for variant in row.variants
    }
    if parts:
        for name, several in PARTS.items():
            chosen |= {
                f"{name} {options}": objectives.algorithm(name, **options) for options in several
            }
    return chosen


# One of every kind of statistic, term, level and sum, for what compiles or computes too long with
# all of them.
KINDS = (
    "bapo-default",
    "clip_cov-default",
    "dpo-default",
    "gepo-default",
    "grpo-batch",
    "gvpo-default",
    "m2po-default",
    "opmd-kimi",
)
KINDS += ("red_drop-default", "reinforce_pp-baseline")

# These choose tokens, or bounds, by order or by balance over the batch: where two stand equally
# high the choice is rounding's.
CHOOSING = {"balanced", "covariance_clipped", "covariance_penalized", "second_moment"}


class Together:
    """Many objectives on one case, in one compilation a shape.

    Everything comes stacked: losses [n], gradients [n, responses, time].

    Each instance compiles for itself: what an older one has compiled does not see a formula that
    was changed since.
    """

    def __init__(self, chosen):
        self.chosen, self.metrics = dict(sorted(chosen.items())), []  # as jax orders them
        self.numbers, structure = jax.tree.flatten(self.chosen)
        self.compute = jax.jit(
            lambda numbers, *arguments: _compute(
                jax.tree.unflatten(structure, list(numbers)), self.metrics, *arguments
            ),
            **QUICK,
        )

    def arguments(self, case, chosen=None, keys=None, index=None, part=None):
        """As `_compute` takes them: numbers as one array."""
        numbers = np.array(jax.tree.leaves(chosen) if chosen else self.numbers, float)
        keys = response_keys(case) if keys is None else keys
        return numbers, case.logprobs, case.fields(), keys, index, part

    def __call__(self, case, **options):
        """Losses, gradients, advantages [n, responses] and metrics [all of them], of the batch
        or of a part of it.
        """
        return jax.device_get(self.compute(*self.arguments(case, **options)))


def components_of(rewards, groups):
    """Two components of a reward, for objectives that read them."""
    live = jnp.asarray(groups) >= 0
    positive = jnp.where(live, jnp.asarray(rewards) > 0, False)
    return {"reward": rewards, "positive": positive.astype(jnp.asarray(rewards).dtype)}


def _compute(chosen, names, logprobs, fields, keys, index, part):
    """Shapes the data, lays the tokens out by `index`, gathers statistics of the batch, and
    differentiates `part` of it.
    """
    rewards, groups = fields["rewards"], fields["groups"]
    lengths = jnp.sum(fields["mask"], axis=1).astype(logprobs.dtype)
    components = components_of(rewards, groups)
    index, part = (slice(None) if places is None else places for places in (index, part))

    def differentiate(objective):
        shaped = objectives.shape_data(objective, rewards, groups, keys, lengths, components)
        batch = objectives.padded_batch(
            advantages=shaped.advantages, dropped=shaped.dropped, **fields
        ).select_tokens(index)

        def loss(logprobs):
            flat = logprobs.reshape(-1)[index]
            stats = objectives.batch_stats(batch, objective, jax.lax.stop_gradient(flat))
            return objectives.policy_loss(objective, flat[part], batch.select_tokens(part), stats)

        (value, metrics), slope = jax.value_and_grad(loss, has_aux=True)(logprobs)
        return value, slope, shaped.advantages, metrics

    *found, metrics = zip(*map(differentiate, chosen.values()), strict=True)
    named = {
        f"{name} {metric}": values[metric]
        for name, values in zip(chosen, metrics, strict=True)
        for metric in sorted(values)
    }
    names[:] = named
    return tuple(map(jnp.stack, (*found, list(named.values()))))


def response_keys(case):
    """A PRNG key a response."""
    return jax.random.key_data(jax.random.split(jax.random.key(1), len(case.groups)))


def check_same(together, case, found, expected, compared=None):
    """Equal losses, gradients and advantages, as many as are given, of the objectives `compared`:
    to a share of the objective's largest entry.
    """
    steady = np.array(
        [
            case.general or not {objective.term.name, objective.mask.name} & CHOOSING
            for objective in together.chosen.values()
        ]
    )
    compared = steady if compared is None else steady & compared
    names = np.array(list(together.chosen))[compared]
    for values, wanted in zip(found, expected, strict=False):
        values, wanted = values[compared], wanted[compared]
        within = tuple(range(1, wanted.ndim))
        largest = np.maximum(np.abs(wanted).max(within, keepdims=True), 1)
        wrong = ~(np.abs(values - wanted) <= 1e-9 * largest).all(within)
        assert not wrong.any(), names[wrong]


def check_metrics(together, case, found, expected):
    """Equal metrics. How much is clipped where an advantage is 0 depends on the sign of a rounded
    zero: left out where rewards may be equal.
    """
    compared = np.array([case.general or " clip_" not in name for name in together.metrics])
    np.testing.assert_allclose(found[compared], expected[compared], rtol=1e-9, atol=1e-9)
