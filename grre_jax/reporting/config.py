"""The configuration's `logging` section."""

import dataclasses

from grre_jax.domains import Record


@dataclasses.dataclass(frozen=True)
class LoggingConfig(Record):
    """Outputs of metrics besides metrics.jsonl and the report.

    Args:
        tensorboard: write TensorBoard event files.
        wandb_project (any text): Weights & Biases project to log to; empty to log to none.
    """

    tensorboard: bool = True
    wandb_project: str = ""
