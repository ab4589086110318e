"""Warnings of combinations of settings that contradict each other or have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grre_jax import rollouts, tasks
from grre_jax.errors import DataError
from grre_jax.explain.objective_report import acts_off_policy
from grre_jax.objectives import Objective
from grre_jax.objectives.parts import advantages, ratios
from grre_jax.rollouts import logprob_checks
from grre_jax.training.actors.calls import idle_sampler
from grre_jax.training.config.run import Config
from grre_jax.training.data.checks import leaked
from grre_jax.training.data.regime import Regime
from grre_jax.training.left_out import moves_without_reward_variance
from grre_jax.training.preflight import spent_rate

LOOKED_AT = 64  # groups of a stored folder


def run_warnings(config: Config, objective: Objective, first_stale: int | None) -> list[str]:
    """Lists what to know before the run, one sentence each.

    Args:
        config: the run.
        objective: its loss.
        first_stale: the first step that trains on a group of another policy than the learner's;
            None if every step is on-policy.
    """
    return [
        *filter(None, [spent_rate(config)]),
        *_regime(config),
        *_data(config, objective),
        *_stored_logprobs(config, objective),
        *_objective(config, objective, first_stale),
        *_evaluation(config),
    ]


def _regime(config: Config) -> Iterator[str]:
    regime, steps = config.regime, config.training.steps
    if idle := idle_sampler(config, 1):
        yield idle
    if not config.samples:
        if regime != Regime():
            yield (
                f"regime ({regime.described}) has no effect: all data is stored already, by"
                " data.path or data.mix"
            )
        return
    last = range(max(steps - regime.reuse, 0), steps)
    if not regime.offline and steps > 1 and not any(map(regime.version, last)):
        yield (
            f"no version after 0 samples anything in {steps} steps: the run is offline in effect"
            " (say regime.offline=true, or raise training.steps)"
        )
    if regime.reuse > steps > 0:
        yield (
            f"regime.reuse={regime.reuse} is more than the run's {steps} steps: there is one batch"
        )
    if regime.replay_ratio and regime.reuse >= steps:
        yield "regime.replay_ratio replays nothing: there is no earlier batch"
    if regime.replay_ratio and not config.schedule.replayed_per_step:
        yield (
            f"regime.replay_ratio={regime.replay_ratio:g} of {config.schedule.prompts_per_step}"
            " groups rounds to none"
        )


def _stored(config: Config) -> list[tuple[str, str]]:
    """The folders of stored groups on disk, each after the name of its field."""
    found = [("data.path", config.data.path)]
    found += [("data.mix", entry.path) for entry in config.data.entries]
    return [(name, path) for name, path in found if path and "://" not in path]


def _data(config: Config, objective: Objective) -> Iterator[str]:
    data = config.data
    for name, path in _stored(config):
        if not Path(path).expanduser().is_dir():
            yield f"{name} names {path}, which does not exist yet"
    stored = bool(data.path or data.mix)
    if not stored:
        for name, default in {"order": "shuffled", "prefer": "", "max_uses": 0}.items():
            if getattr(data, name) != default:
                yield (
                    f"data.{name} is of stored groups, and there are none: set data.path or"
                    " data.mix"
                )
    if not config.samples and data.dynamic_sampling:
        yield "data.dynamic_sampling has no effect: nothing is sampled"
    if data.questions and not data.path:
        yield "data.questions selects groups of data.path, which is empty"
    if stored and data.drop_zero_variance and moves_without_reward_variance(objective):
        yield (
            f"data.drop_zero_variance leaves out groups that {objective.name} would still learn"
            " from"
        )
    if "expert" in objective.requires and not any(entry.expert for entry in data.entries):
        yield (
            f"{objective.name} imitates completions that are marked as an expert's: mark a folder"
            " of data.mix with :expert, unless its records say so themselves"
        )
    if "expert" not in objective.requires and any(entry.expert for entry in data.entries):
        yield (
            f"{objective.name} does not treat an expert's completions apart: it takes their rewards"
            " as any others' (chord does)"
        )


def _stored_logprobs(config: Config, objective: Objective) -> Iterator[str]:
    """Checks stored log-probs of groups from all over each folder."""
    if "old_logprobs" not in objective.requires:
        return
    for name, path in _stored(config):
        if not Path(path).expanduser().is_dir():
            continue
        checks = logprob_checks.Checks()
        try:
            reader = rollouts.read(Path(path).expanduser())
            for number in range(0, len(reader), max(len(reader) // LOOKED_AT, 1)):
                checks.add(reader[number])
        except DataError as error:
            yield f"{name} {path} cannot be read: {error}"
            continue
        yield from (f"{name} {path}: {problem}" for problem in checks.problems())


def _objective(config: Config, objective: Objective, first_stale: int | None) -> Iterator[str]:
    stale = first_stale is not None or bool(config.data.path or config.data.mix)
    sampling = config.sampling
    if (
        sampling.group_size == 1
        and objective.singleton_baseline == "mean"
        and config.samples
        and not moves_without_reward_variance(objective)
        and not objective.term.differentiated
    ):
        yield (
            "sampling.group_size=1 gives groups of one, whose advantages are all 0: sample at"
            " least 2, or set objective.options.singleton_baseline to none"
        )
    if acts_off_policy(objective) and not stale:
        yield (
            f"the clip ranges and weights of {objective.name} are without effect: its gradient here"
            " is that of plain REINFORCE with its advantages"
        )
    if (
        stale
        and not objective.takes_ratio
        and not objective.penalties
        and not objective.term.differentiated
        and objective.advantage in (advantages.group_mean, advantages.group_std)
    ):
        yield (
            f"{objective.name} neither clips nor regularizes, and is given stale data: arXiv"
            " 2509.24203 shows it collapse where data is many updates old"
        )
    if objective.ratio_reference == ratios.log_linear and not stale:
        yield f"{objective.name} interpolates by staleness, which is 0 throughout: its ratio is 1"
    if objective.takes_ratio and sampling.truncated:
        yield (
            "sampling is truncated and ratios are over the full vocabulary: like is compared with"
            " like, and what truncation cut off (each record's kept mass) is corrected by no ratio"
        )


def _evaluation(config: Config) -> Iterator[str]:
    """Checks a user's own task; the built-in ones hold questions out."""
    if config.task.name in tasks.names():
        return
    try:
        task = config.task.build(config.seed)
        found = leaked(config, task)
    except Exception as error:  # the user's code; the rest is explained all the same
        found = f"the task's questions cannot be looked at: {str(error).rstrip('.')}"
    if found:
        yield found
