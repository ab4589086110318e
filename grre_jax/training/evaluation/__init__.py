"""Evaluation of policies: accuracy, reward, pass@k and the KL to the start on held-out questions,
of a run while it trains, of a finished run or of a model.
"""
