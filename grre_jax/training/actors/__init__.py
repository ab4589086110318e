"""Sampling for training: the explorer and its calls of the sampler, the supply of a step's groups,
leases of roles.
"""
