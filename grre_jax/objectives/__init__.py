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

from grre_jax.objectives.algorithms import AlgorithmRow, algorithm, algorithm_table, algorithms
from grre_jax.objectives.batch import Batch, BatchStats, padded_batch
from grre_jax.objectives.composition import advantages, policy_loss, shape_data
from grre_jax.objectives.diagnostics import batch_diagnostics, zero_variance_groups
from grre_jax.objectives.inputs import (
    Contribution,
    LossInputs,
    RewardInputs,
    ShapedData,
    with_derivative,
)
from grre_jax.objectives.named_parts import named
from grre_jax.objectives.objective import Objective, stack
from grre_jax.objectives.part import (
    RATIO,
    Advantage,
    Aggregation,
    Correction,
    Filter,
    Hyperparameter,
    Level,
    Mask,
    Order,
    Part,
    Penalty,
    RatioReference,
    Returns,
    Shaping,
    Statistic,
    Term,
    Weight,
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
    term,
    weight,
)
from grre_jax.objectives.statistics import batch_stats
from grre_jax.objectives.surrogate import (
    consistency_residuals,
    consistency_values,
    pointwise_loss,
    response_logprobs,
    surrogate_loss,
    turn_logprobs,
    weighted_surrogate_loss,
)

__all__ = [
    "Advantage",
    "Aggregation",
    "AlgorithmRow",
    "Batch",
    "BatchStats",
    "Contribution",
    "Correction",
    "Filter",
    "Hyperparameter",
    "Level",
    "LossInputs",
    "Mask",
    "Objective",
    "Order",
    "Part",
    "Penalty",
    "RATIO",
    "RatioReference",
    "Returns",
    "RewardInputs",
    "ShapedData",
    "Shaping",
    "Statistic",
    "Term",
    "Weight",
    "advantage",
    "advantages",
    "aggregation",
    "algorithm",
    "algorithm_table",
    "algorithms",
    "batch_diagnostics",
    "batch_stats",
    "consistency_residuals",
    "consistency_values",
    "correction",
    "filter_",
    "level",
    "mask",
    "named",
    "padded_batch",
    "penalty",
    "pointwise_loss",
    "policy_loss",
    "ratio_reference",
    "response_logprobs",
    "returns",
    "shape_data",
    "shaping",
    "stack",
    "surrogate_loss",
    "term",
    "turn_logprobs",
    "weight",
    "weighted_surrogate_loss",
    "with_derivative",
    "zero_variance_groups",
]
