"""The three-arm bandit, where the expected update can be followed to its end."""
