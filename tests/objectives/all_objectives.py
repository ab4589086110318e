"""Every objective there is."""

import jax.numpy as jnp

from grre_jax import objectives

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
        {"kl_coef": 0.1},
        {"kl_coef": 0.1, "kl_estimator": "k3_is", "kl_reference": "behavior"},
    ],
    "red_drop": [{"aggregation": "group", "denominator": "kept"}],
    "dapo": [{"max_length": 3, "overlong_buffer": 2}],
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


def components_of(rewards, groups):
    """Two components of a reward, for objectives that read them."""
    live = jnp.asarray(groups) >= 0
    positive = jnp.where(live, jnp.asarray(rewards) > 0, False)
    return {"reward": rewards, "positive": positive.astype(jnp.asarray(rewards).dtype)}
