"""Output of a run for people: `metrics.jsonl`, TensorBoard, Weights & Biases, the progress bar, the
curves and the report.

Matplotlib, rich, tensorboardX and wandb are imported when they are used, not here.
"""

from grre_jax.reporting.figures import draw_curves, overview_figure, panel_figure
from grre_jax.reporting.loggers import (
    RunLog,
    TensorBoardLogger,
    WandbLogger,
    check_loggers,
    open_log,
)
from grre_jax.reporting.metrics import MetricsLog, read_metrics, series
from grre_jax.reporting.outcome import Evaluation
from grre_jax.reporting.panels import PANELS, Panel, run_colours
from grre_jax.reporting.progress import TrainingProgress, print_header
from grre_jax.reporting.report import Report, report
from grre_jax.reporting.summary import RunSummary, print_summaries, summarise, wilson_interval

__all__ = [
    "PANELS",
    "Evaluation",
    "MetricsLog",
    "Panel",
    "Report",
    "RunLog",
    "RunSummary",
    "TensorBoardLogger",
    "TrainingProgress",
    "WandbLogger",
    "check_loggers",
    "draw_curves",
    "open_log",
    "overview_figure",
    "panel_figure",
    "print_header",
    "print_summaries",
    "read_metrics",
    "report",
    "run_colours",
    "series",
    "summarise",
    "wilson_interval",
]
