"""Every record of a configuration, from the rooms that own them:
`from grre_jax import config as c`.
"""

from grre_jax.models.source import ModelSource as ModelSource
from grre_jax.parallel.mesh import MeshConfig as MeshConfig
from grre_jax.reporting.config import LoggingConfig as LoggingConfig
from grre_jax.sampling.config import SamplingConfig as SamplingConfig
from grre_jax.tasks.config import TaskConfig as TaskConfig
from grre_jax.training.config.run import RESUMABLE_FIELDS as RESUMABLE_FIELDS
from grre_jax.training.config.run import Config as Config
from grre_jax.training.config.run import differences as differences
from grre_jax.training.config.run import from_dict as from_dict
from grre_jax.training.config.run import load_file as load_file
from grre_jax.training.config.sections import CheckpointConfig as CheckpointConfig
from grre_jax.training.config.sections import ClusterConfig as ClusterConfig
from grre_jax.training.config.sections import DataConfig as DataConfig
from grre_jax.training.config.sections import EvaluationConfig as EvaluationConfig
from grre_jax.training.config.sections import ExplorersConfig as ExplorersConfig
from grre_jax.training.config.sections import LearnerConfig as LearnerConfig
from grre_jax.training.config.sections import ObjectiveConfig as ObjectiveConfig
from grre_jax.training.config.sections import TrainingConfig as TrainingConfig
from grre_jax.training.config.sections import WarmStartConfig as WarmStartConfig
from grre_jax.training.data.plan import Regime as Regime
from grre_jax.training.data.plan import Schedule as Schedule
from grre_jax.training.optimizer import OptimizerConfig as OptimizerConfig
