"""Evaluation of policies: accuracy, reward, pass@k and the KL to the start on held-out questions,
of a run while it trains, of a finished run or of a model.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
