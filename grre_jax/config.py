"""Every record of a configuration, from the rooms that own them:
`from grre_jax import config as c`.
"""

from grre_jax.models.source import ModelSource
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.reporting.metrics import LoggingConfig
from grre_jax.sampling_params import SamplingConfig
from grre_jax.tasks.config import TaskConfig
from grre_jax.training.config.run import RESUMABLE_FIELDS, Config, differences, from_dict, load_file
from grre_jax.training.config.sections import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    EvaluationConfig,
    ExplorersConfig,
    LearnerConfig,
    ObjectiveConfig,
    TrainingConfig,
    WarmStartConfig,
)
from grre_jax.training.data.plan import Regime, Schedule
from grre_jax.training.optimizer import OptimizerConfig

__all__ = [
    "CheckpointConfig",
    "ClusterConfig",
    "Config",
    "DataConfig",
    "EvaluationConfig",
    "ExplorersConfig",
    "LearnerConfig",
    "LoggingConfig",
    "MeshConfig",
    "ModelSource",
    "ObjectiveConfig",
    "OptimizerConfig",
    "RESUMABLE_FIELDS",
    "Regime",
    "SamplingConfig",
    "Schedule",
    "TaskConfig",
    "TrainingConfig",
    "WarmStartConfig",
    "differences",
    "from_dict",
    "load_file",
]
