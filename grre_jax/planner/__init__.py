"""`grre compile`: ahead-of-time compilation of a run for this machine or for a named TPU slice,
without a TPU.

`compile` compiles the programs and reports on them, `abstract` has the arrays that they are
compiled for, `counts` reads products, collectives and cycles from compiled programs.
"""
