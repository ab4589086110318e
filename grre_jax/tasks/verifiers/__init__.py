"""Judges of completions: functions `(question, completion) -> Verdict`, each usable on any task.

    grre train CONFIG --task.reward grre_jax.tasks.verifiers.final_number:verify_number

One of yours is such a function in any file, named in the same way (docs/own-task.md); `Question`
and `Verdict` are in `grre_jax.tasks`.

`final_number.verify_number` (the final number of a text), `math.verify_math` (mathematics, by
math-verify), `function_calls.verify_calls` (function calls).
"""
