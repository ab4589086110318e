"""Objectives: from rewards and log-probs to a loss.

Pure functions of arrays that import jax and nothing else of the project.

    objective = algorithm("rec_oneside_nois", epsilon_low=0.6, epsilon_high=2.0)
    batch = padded_batch(
        advantages=advantages(objective, rewards, groups),
        mask=mask,
        groups=groups,
        old_logprobs=old_logprobs,
    )
    loss, metrics = policy_loss(objective, logprobs, batch)
"""

# `algorithms` is the function; it takes the place of the module of that name.
from grre_jax.objectives.algorithms import AlgorithmRow, algorithm, algorithm_table, algorithms
from grre_jax.objectives.batch import Batch, BatchStats, padded_batch
from grre_jax.objectives.composition import advantages, policy_loss, shape_data
from grre_jax.objectives.diagnostics import batch_diagnostics, zero_variance_groups
from grre_jax.objectives.inputs import (
    Contribution,
    LossInputs,
    RewardInputs,
    ShapedData,
    batch_stats,
    with_derivative,
)
from grre_jax.objectives.objective import (
    RATIO,
    Hyperparameter,
    Objective,
    Order,
    Part,
    Statistic,
    Term,
    advantage,
    aggregation,
    correction,
    filter_,
    level,
    mask,
    penalty,
    ratio_reference,
    returns,
    shaping,
    stack,
    term,
    weight,
)

__all__ = [
    "RATIO",
    "AlgorithmRow",
    "Batch",
    "BatchStats",
    "Contribution",
    "Hyperparameter",
    "LossInputs",
    "Objective",
    "Order",
    "Part",
    "RewardInputs",
    "ShapedData",
    "Statistic",
    "Term",
    "advantage",
    "advantages",
    "aggregation",
    "algorithm",
    "algorithm_table",
    "algorithms",
    "batch_diagnostics",
    "batch_stats",
    "correction",
    "filter_",
    "level",
    "mask",
    "padded_batch",
    "penalty",
    "policy_loss",
    "ratio_reference",
    "returns",
    "shape_data",
    "shaping",
    "stack",
    "term",
    "weight",
    "with_derivative",
    "zero_variance_groups",
]
