"""Every record of a configuration, from the rooms that own them:
`from grre_jax import config as c`.
"""

from grre_jax.models.source import ModelSource
from grre_jax.parallel.mesh import MeshConfig, SamplerMeshConfig
from grre_jax.reporting.config import LoggingConfig
from grre_jax.sampling.config import SamplingConfig
from grre_jax.tasks.config import TaskConfig
from grre_jax.training.checkpoints.config import CheckpointConfig
from grre_jax.training.config.run import RESUMABLE_FIELDS, Config, differences, from_dict, load_file
from grre_jax.training.config.sections import ObjectiveConfig, TrainingConfig, WarmStartConfig
from grre_jax.training.data.config import DataConfig, MixEntry, parse_mix, parse_range, total_share
from grre_jax.training.data.regime import Regime
from grre_jax.training.data.schedule import Schedule
from grre_jax.training.evaluation.config import EvaluationConfig
from grre_jax.training.optimizer import OptimizerConfig

__all__ = [
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "differences",
    "EvaluationConfig",
    "from_dict",
    "load_file",
    "LoggingConfig",
    "MeshConfig",
    "MixEntry",
    "ModelSource",
    "ObjectiveConfig",
    "OptimizerConfig",
    "parse_mix",
    "parse_range",
    "Regime",
    "RESUMABLE_FIELDS",
    "SamplerMeshConfig",
    "SamplingConfig",
    "Schedule",
    "TaskConfig",
    "total_share",
    "TrainingConfig",
    "WarmStartConfig",
]
