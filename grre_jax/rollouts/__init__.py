"""Rollouts: the folder of sealed data sets that samplers write and learners read.

    from grre_jax import rollouts
    rollouts.write(folder, groups, writer="sampler", policy_version=3, metadata={"task": "sums"})
    reader = rollouts.read(folder)
    order = rollouts.TrainingOrder([(reader, range(len(reader)))], seed=0, prompts_per_step=16)
    for step in range(100): groups = order[step]

TensorFlow Datasets, ArrayRecord and Grain are imported when the first record is written, read or
shuffled; TensorFlow never is.
"""

from grre_jax.rollouts.dataset import TrainingOrder as TrainingOrder
from grre_jax.rollouts.manifest import (
    CorruptManifest as CorruptManifest,
    CorruptShard as CorruptShard,
    Entry as Entry,
)
from grre_jax.rollouts.reader import RolloutReader as RolloutReader, read as read
from grre_jax.rollouts.schema import (
    SCHEMA_VERSION as SCHEMA_VERSION,
    Group as Group,
    correctness as correctness,
)
from grre_jax.rollouts.tools.copying import (
    filter as filter,
    merge as merge,
    predicate as predicate,
)
from grre_jax.rollouts.tools.exchange import export as export, import_rows as import_rows
from grre_jax.rollouts.tools.inspection import VerifyReport as VerifyReport, verify as verify
from grre_jax.rollouts.writer import write as write
