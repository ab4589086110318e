"""Checkpoints of a run, written by Orbax: the folder, which steps are kept, and the checksums of
their arrays.
"""
