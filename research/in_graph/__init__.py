"""Whole runs of tiny models as one compiled program each, the warm start they begin from, and
campaigns of many runs over worker processes.
"""
