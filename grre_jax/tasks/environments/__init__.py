"""Environments: what answers the policy over several turns, with tools or without, and how they are
run: in the caller's process or in the verifier's processes.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
