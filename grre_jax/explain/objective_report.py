"""The view that an objective has of a run's data: sources, ratio, whether clipping can act."""

from grre_jax.objectives import RATIO, Objective, Part
from grre_jax.objectives.parts import ratios
from grre_jax.training.config.run import Config
from grre_jax.training.preflight import left_out, stored_data


def _phrase(part: Part) -> str:
    """Returns the description of a part without its capital and its period."""
    return part.description[0].lower() + part.description[1:].removesuffix(".")


# The source of what an objective requires; {} is the place of the records.
_SOURCES = {
    "old_logprobs": "log-probs q of the policy that sampled, from the groups' records{}",
    "prox_logprobs": "log-probs p of the policy at the start of the update: the step's own",
    "ref_logprobs": "log-probs f of the policy that the run starts from: one more forward pass",
    "rewards": "each group's record",
    "staleness": "the step less the version in each group's record",
    "expert": "the records' is_expert, and the folders that data.mix marks",
    "turns": "turns and their rewards, from each group's record; else one turn a completion",
}
_OWN = "not known of a loss of one's own"


def objective_report(
    config: Config, objective: Objective, first_stale: int | None
) -> dict[str, str]:
    """Reports what the objective sees.

    Args:
        config: the run.
        objective: the loss.
        first_stale: the first step that trains on a group of another policy than the learner's;
            None if every step is on-policy.

    Returns:
        The sources of the data it requires, its ratio, its clipping, and what is left out; empty
        for none.
    """
    sources = (f"{name}: {_source(name, config)}" for name in sorted(objective.requires))
    return {
        "sources": "\n".join(sources),
        "ratio": _ratio(config, objective),
        "clipping": _clipping(config, objective, first_stale),
        "left out": "\n".join(left_out(config, objective)),
    }


def _ratio(config: Config, objective: Objective) -> str:
    """Of a user's own loss, that of its correction."""
    own = objective.term.differentiated
    if not (objective.correction if own else objective.takes_ratio):
        return _OWN if own else ""
    ratio = (
        f"of {_phrase(objective.level)}, to {_phrase(objective.ratio_reference)}, both at"
        f" temperature {config.sampling.temperature:g} over the full vocabulary"
    )
    return f"its correction's: {ratio}" if own else ratio


def _source(name: str, config: Config) -> str:
    if name in config.objective.stored_fields:
        return f"stored in the records of {config.data.path}"
    place = "" if config.samples else f" of {config.data.path or config.data.mix}"
    return _SOURCES.get(name, "the batch").format(place)


def _clipping(config: Config, objective: Objective, first_stale: int | None) -> str:
    if objective.term.differentiated:
        return _OWN
    bounds = [part for part in (objective.mask, objective.weight) if RATIO in part.data]
    if not (bounds or RATIO in objective.term.data):
        return ""
    what = "; ".join(map(_phrase, bounds)) or "the loss depends on the ratio"
    proximal = objective.ratio_reference == ratios.proximal
    # A ratio to the group's expectation is another number than 1 on-policy too.
    group = objective.level == ratios.group_expectation
    if proximal and "proximal" not in config.objective.stored and not group:
        when = "never acts: a step is one update, so p is the policy itself and the ratio is 1"
    elif group or stored_data(config) or first_stale == 0:
        when = "can act from the first step on"
    elif first_stale is None:
        when = "cannot act: all data is on-policy, and the ratio is 1 up to rounding"
    else:
        when = f"can act from step {first_stale} on; before, the ratio is 1 up to rounding"
    return f"{what}. It {when}."
