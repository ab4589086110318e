"""Checkpoints of a run, written by Orbax: in a folder on disk or in an object store, which steps
are kept, and the checksums of their arrays.

`folder.opened` chooses between disk and store.
"""
