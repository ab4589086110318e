"""Output of a run for people: `metrics.jsonl`, TensorBoard, Weights & Biases, the progress bar, the
curves and the report.

Matplotlib, rich, tensorboardX and wandb are imported when they are used.
"""

from grre_jax.reporting.figures import draw_curves as draw_curves
from grre_jax.reporting.figures import overview_figure as overview_figure
from grre_jax.reporting.figures import panel_figure as panel_figure
from grre_jax.reporting.intervals import wilson_interval as wilson_interval
from grre_jax.reporting.loggers import RunLog as RunLog
from grre_jax.reporting.loggers import TensorBoardLogger as TensorBoardLogger
from grre_jax.reporting.loggers import WandbLogger as WandbLogger
from grre_jax.reporting.loggers import check_loggers as check_loggers
from grre_jax.reporting.loggers import open_log as open_log
from grre_jax.reporting.metrics import MetricsLog as MetricsLog
from grre_jax.reporting.metrics import read_metrics as read_metrics
from grre_jax.reporting.metrics import series as series
from grre_jax.reporting.outcome import Evaluation as Evaluation
from grre_jax.reporting.panels import PANELS as PANELS
from grre_jax.reporting.panels import Panel as Panel
from grre_jax.reporting.panels import run_colours as run_colours
from grre_jax.reporting.progress import TrainingProgress as TrainingProgress
from grre_jax.reporting.progress import print_header as print_header
from grre_jax.reporting.run_report import Report as Report
from grre_jax.reporting.run_report import report as report
from grre_jax.reporting.summary import RunSummary as RunSummary
from grre_jax.reporting.summary import print_summaries as print_summaries
from grre_jax.reporting.summary import summarise as summarise
