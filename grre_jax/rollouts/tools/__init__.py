"""The commands of `grre rollouts`: show, verify, copy, select, change rewards or log-probs;
`exchange` imports and exports.
"""
