"""The compiled programs of the sampler: the engine, its state and weights, the assignment of
prompts and completions to slots, the KV cache and attention over it.
"""
