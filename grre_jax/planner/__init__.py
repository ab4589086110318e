"""`grre compile`: ahead-of-time compilation of a run for this machine or for a named TPU slice,
without a TPU.

`compile` compiles the programs for arrays that are never allocated and reports on them, `counts`
reads collectives and cycles from compiled programs.
"""
