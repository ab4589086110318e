"""The command line `grre`."""

from grre_jax.cli.entry import main as main
