"""The distribution of a token: temperature, truncations, and reductions over a vocabulary that may
be cut over devices.
"""
