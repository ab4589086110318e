"""Every record of a configuration, from the rooms that own them:
`from grre_jax import config as c`.
"""

from grre_jax.models.source import ModelSource as ModelSource
from grre_jax.parallel.mesh import MeshConfig as MeshConfig
from grre_jax.reporting.config import LoggingConfig as LoggingConfig
from grre_jax.sampling.config import SamplingConfig as SamplingConfig
from grre_jax.tasks.config import TaskConfig as TaskConfig
from grre_jax.training.checkpoints.config import CheckpointConfig as CheckpointConfig
from grre_jax.training.config.run import (
    RESUMABLE_FIELDS as RESUMABLE_FIELDS,
    Config as Config,
    differences as differences,
    from_dict as from_dict,
    load_file as load_file,
)
from grre_jax.training.config.sections import (
    ClusterConfig as ClusterConfig,
    ExplorersConfig as ExplorersConfig,
    LearnerConfig as LearnerConfig,
    ObjectiveConfig as ObjectiveConfig,
    TrainingConfig as TrainingConfig,
    WarmStartConfig as WarmStartConfig,
)
from grre_jax.training.data.config import DataConfig as DataConfig
from grre_jax.training.data.regime import Regime as Regime
from grre_jax.training.data.schedule import Schedule as Schedule
from grre_jax.training.evaluation.config import EvaluationConfig as EvaluationConfig
from grre_jax.training.optimizer import OptimizerConfig as OptimizerConfig
