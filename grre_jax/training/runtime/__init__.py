"""The surroundings of a run's steps: metrics that are read one step late, stop requests, and
waiting for other processes.
"""
