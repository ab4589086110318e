"""Sampling for training: the explorer and its calls of the sampler, explorers on a cluster, the
supply of a step's groups, and how weights get to what samples (`weight_sync`).
"""
