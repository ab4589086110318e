"""`grre learn` and `grre explore`: the halves of `grre train`, in processes of their own."""

from __future__ import annotations

from grre_jax.cli.arguments import Processes, configured


def learn(
    config: str,
    words: list[str],
    *,
    overwrite: bool = False,
    free_running: bool = False,
    processes: Processes,
) -> int:
    """Train on the groups that explorers sample.

    The learner's half of grre train: publishes the policies that grre explore samples with. Started
    again, it continues from its last checkpoint. Fields are overridden as for train.

    Args:
        config: a Python file with config() -> grre_jax.config.Config.
        overwrite: replace the run in the folder.
        free_running: sample with the newest policy within the regime's staleness, not with the one
            that the schedule names; not repeatable. For the learner and its explorers alike.
    """

    def work() -> None:
        from grre_jax.training import roles

        loaded = configured(config, words, computes=True)
        roles.learn(loaded, free=free_running, overwrite=overwrite)

    return processes.run(work)


def explore(
    config: str,
    words: list[str],
    *,
    explorer_name: str = "0",
    explorers: int = 1,
    index: int = 0,
    free_running: bool = False,
    processes: Processes,
) -> int:
    """Sample for a learner.

    The sampling half of grre train: seals this explorer's share of the data in the run's folder.
    Started again, it continues where its data ends. Give the learner's configuration and fields.

    Args:
        config: a Python file with config() -> grre_jax.config.Config.
        explorer_name: this explorer's name in the run.
        explorers: number of explorers that share the run.
        index: index of this explorer, from 0.
        free_running: as of the learner.
    """

    def work() -> None:
        from grre_jax.training import roles

        role = roles.ExplorerRole(explorer_name, index, explorers, free_running)
        roles.explore_run(configured(config, words, computes=True), role)

    return processes.run(work)
