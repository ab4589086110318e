"""The parts that objectives are composed of, each one definition: `advantages` (of groups and of
the whole batch, and data shaping), `ratios` (levels, ratio references, importance weights and
corrections), `masks` (and filters of responses), `terms`, `response_terms`, `penalties`,
`aggregations`.
"""
