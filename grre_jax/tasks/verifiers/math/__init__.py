"""Equality of mathematical answers: `answers` finds the final expression of a completion,
`notation` and `units` normalise it, `parts` and `statements` take it apart, `reading` and
`values` compute it, `equality` compares.
"""
