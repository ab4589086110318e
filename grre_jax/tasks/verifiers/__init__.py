"""Judges of completions: the final number, function calls, mathematical equality (`math`), and
the answers of reasoning-gym.
"""
