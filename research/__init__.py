"""Small studies of what the objectives do: a three-arm bandit where the answer is known, and
whole runs of tiny models inside one graph.
"""
