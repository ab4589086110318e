"""Output of a run for people: `metrics.jsonl`, TensorBoard, Weights & Biases, the progress bar, the
curves and the report.

Matplotlib, rich, tensorboardX and wandb are imported when they are used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
