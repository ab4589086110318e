"""Output of a run for people: `metrics.jsonl`, TensorBoard, Weights & Biases, the progress bar, the
curves and the report.

Matplotlib, rich, tensorboardX and wandb are imported when they are used.
"""

from grre_jax.reporting.figures import (
    overview_figure as overview_figure,
)
from grre_jax.reporting.intervals import wilson_interval as wilson_interval
from grre_jax.reporting.metrics import (
    MetricsLog as MetricsLog,
    RunLog as RunLog,
    check_loggers as check_loggers,
    open_log as open_log,
    read_metrics as read_metrics,
    series as series,
)
from grre_jax.reporting.progress import (
    TrainingProgress as TrainingProgress,
    print_header as print_header,
)
from grre_jax.reporting.run_report import report as report
