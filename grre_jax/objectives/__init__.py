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

from grre_jax.objectives.algorithms import AlgorithmRow as AlgorithmRow
from grre_jax.objectives.algorithms import algorithm as algorithm
from grre_jax.objectives.algorithms import algorithm_table as algorithm_table

# The name of a module too, whose place it takes.
from grre_jax.objectives.algorithms import algorithms as algorithms
from grre_jax.objectives.batch import Batch as Batch
from grre_jax.objectives.batch import BatchStats as BatchStats
from grre_jax.objectives.batch import padded_batch as padded_batch
from grre_jax.objectives.composition import advantages as advantages
from grre_jax.objectives.composition import policy_loss as policy_loss
from grre_jax.objectives.composition import shape_data as shape_data
from grre_jax.objectives.diagnostics import batch_diagnostics as batch_diagnostics
from grre_jax.objectives.diagnostics import zero_variance_groups as zero_variance_groups
from grre_jax.objectives.inputs import Contribution as Contribution
from grre_jax.objectives.inputs import LossInputs as LossInputs
from grre_jax.objectives.inputs import RewardInputs as RewardInputs
from grre_jax.objectives.inputs import ShapedData as ShapedData
from grre_jax.objectives.inputs import with_derivative as with_derivative
from grre_jax.objectives.named_parts import named as named
from grre_jax.objectives.objective import Objective as Objective
from grre_jax.objectives.objective import stack as stack
from grre_jax.objectives.part import RATIO as RATIO
from grre_jax.objectives.part import Advantage as Advantage
from grre_jax.objectives.part import Aggregation as Aggregation
from grre_jax.objectives.part import Correction as Correction
from grre_jax.objectives.part import Filter as Filter
from grre_jax.objectives.part import Hyperparameter as Hyperparameter
from grre_jax.objectives.part import Level as Level
from grre_jax.objectives.part import Mask as Mask
from grre_jax.objectives.part import Order as Order
from grre_jax.objectives.part import Part as Part
from grre_jax.objectives.part import Penalty as Penalty
from grre_jax.objectives.part import RatioReference as RatioReference
from grre_jax.objectives.part import Returns as Returns
from grre_jax.objectives.part import Shaping as Shaping
from grre_jax.objectives.part import Statistic as Statistic
from grre_jax.objectives.part import Term as Term
from grre_jax.objectives.part import Weight as Weight
from grre_jax.objectives.part import advantage as advantage
from grre_jax.objectives.part import aggregation as aggregation
from grre_jax.objectives.part import correction as correction
from grre_jax.objectives.part import filter_ as filter_
from grre_jax.objectives.part import level as level
from grre_jax.objectives.part import mask as mask
from grre_jax.objectives.part import penalty as penalty
from grre_jax.objectives.part import ratio_reference as ratio_reference
from grre_jax.objectives.part import returns as returns
from grre_jax.objectives.part import shaping as shaping
from grre_jax.objectives.part import term as term
from grre_jax.objectives.part import weight as weight
from grre_jax.objectives.statistics import batch_stats as batch_stats
