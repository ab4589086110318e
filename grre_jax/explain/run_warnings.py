"""Warnings of settings that contradict each other or have no effect; a run itself has others."""

from __future__ import annotations

from collections.abc import Iterator

from grre_jax.explain.objective_report import acts_off_policy
from grre_jax.objectives import Objective
from grre_jax.objectives.parts import advantages
from grre_jax.training.config.run import Config
from grre_jax.training.data.regime import Regime
from grre_jax.training.left_out import moves_without_reward_variance, stored_data


def run_warnings(config: Config, objective: Objective, first_stale: int | None) -> list[str]:
    """Lists what to know before the run, one sentence each; arguments as of `objective_report`."""
    stale = first_stale is not None or stored_data(config)
    return [*_regime(config), *_data(config, objective), *_objective(config, objective, stale)]


def _regime(config: Config) -> Iterator[str]:
    regime = config.regime
    steps = config.training.steps
    last = range(max(steps - regime.reuse, 0), steps)
    if not config.samples:
        if regime != Regime():
            yield f"regime ({regime.described}) has no effect: all data is stored already"
        return
    if not regime.offline and steps > 1 and not any(map(regime.version, last)):
        yield f"regime: no version after 0 samples in {steps} steps, as with regime.offline=true"


def _data(config: Config, objective: Objective) -> Iterator[str]:
    data = config.data
    name = objective.name
    expert = any(entry.expert for entry in data.entries)
    if not stored_data(config):
        if data.order != "shuffled":
            yield "data.order has no effect without data.path or data.mix"
    elif data.drop_zero_variance and moves_without_reward_variance(objective):
        yield f"data.drop_zero_variance leaves out groups that {name} would still learn from"
    if "expert" in objective.requires and not expert:
        yield f"{name} imitates an expert's completions: data.mix marks no folder with :expert"
    if "expert" not in objective.requires and expert:
        yield f"{name} takes an expert's completions by their rewards, as any others"


def _objective(config: Config, objective: Objective, stale: bool) -> Iterator[str]:
    own = objective.term.differentiated
    alone = config.sampling.group_size == 1 and objective.singleton_baseline == "mean"
    if config.samples and alone and not own and not moves_without_reward_variance(objective):
        yield "sampling.group_size=1: every advantage is 0 unless singleton_baseline=none"
    if acts_off_policy(objective) and not stale:
        yield f"clip ranges and weights of {objective.name} have no effect on on-policy data"
    plain = objective.advantage in (advantages.group_mean, advantages.group_std)
    regularized = objective.takes_ratio or objective.penalties
    if stale and plain and not own and not regularized:
        yield f"{objective.name} neither clips nor regularizes, and may collapse on stale data"
