from .command import evaluate_model as evaluate_model
from .command import evaluate_run as evaluate_run
from .config import EvaluationConfig as EvaluationConfig
