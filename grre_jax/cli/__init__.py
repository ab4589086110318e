"""The command line `grre`: `entry` holds the commands, the other modules the arguments of one
group of commands each.
"""

from grre_jax.cli.entry import main as main
