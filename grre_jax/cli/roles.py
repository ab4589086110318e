"""The `grre explore` and `grre learn` part of the command line."""

from __future__ import annotations

import argparse

from grre_jax.cli.parsing import CONFIG, PROCESSES, add_command, configured_run, run_joined

_FREE_RUNNING = """
    --free-running: sample with the newest policy within the regime's staleness, not with the one
        that the schedule names; not repeatable. For the learner and its explorers alike
"""


def add_parsers(commands: argparse._SubParsersAction) -> None:
    """Adds `explore` and `learn` to the command line's commands."""
    add_command(
        commands,
        "learn",
        _learn,
        "train on the groups that explorers sample",
        CONFIG,
        "--overwrite: replace the run in the folder",
        _FREE_RUNNING,
        PROCESSES,
        description="The learner's half of grre train: trains on the groups that grre explore"
        " samples into the run's folder, and publishes the policies that they sample with. Started"
        " again, it continues from its last checkpoint. Any field of the configuration is"
        " overridden by its dotted name.",
        takes_fields=True,
        computes=True,
    )
    add_command(
        commands,
        "explore",
        _explore,
        "sample for a learner",
        CONFIG,
        """
        --explorer-name NAME [0]: this explorer's name in the run
        --explorers N [1]: number of explorers that share the run
        --index N [0]: index of this explorer, from 0
        """,
        _FREE_RUNNING,
        PROCESSES,
        description="The sampling half of grre train: waits for the policy versions that the"
        " schedule names, samples this explorer's share of their data and seals it in the run's"
        " folder. Started again, it continues where its data ends. Give the learner's configuration"
        " and fields.",
        takes_fields=True,
        computes=True,
    )


def _learn(known: argparse.Namespace, rest: list[str]) -> int:
    def learn() -> None:
        from grre_jax.training import roles

        config = configured_run(known, rest)
        roles.learn(config, free=known.free_running, overwrite=known.overwrite)

    return run_joined(known, learn)


def _explore(known: argparse.Namespace, rest: list[str]) -> int:
    def explore() -> None:
        from grre_jax.training import roles

        share = (known.explorer_name, known.index, known.explorers)
        role = roles.ExplorerRole(*share, known.free_running)
        roles.explore_run(configured_run(known, rest), role)

    return run_joined(known, explore)
