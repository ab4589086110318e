"""The parts that objectives are composed of, each one definition: `advantages` (baselines and data
shaping), `batch_advantages`, `ratios` (levels, ratio references, importance weights and
corrections), `masks` (and filters of responses), `terms`, `response_terms`, `penalties`,
`aggregations`.
"""
