"""Sampling for training: the explorer and its calls of the sampler, explorers on a cluster, and
the supply of a step's groups.
"""
