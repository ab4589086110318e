"""The view that an objective has of a run's data: the log-probs that it takes and their source, the
policy that its ratio is to, and whether clipping can act.
"""

from __future__ import annotations

import dataclasses

from grre_jax import objectives
from grre_jax.objectives import RATIO, Objective, Part
from grre_jax.objectives.parts import ratios
from grre_jax.training.config.run import Config
from grre_jax.training.left_out import left_out, stored_data


def _phrase(part: Part) -> str:
    """Returns the description of a part without its capital and its period."""
    return part.description[0].lower() + part.description[1:].removesuffix(".")


_POLICIES = {
    "old_logprobs": _phrase(ratios.behavior),
    "prox_logprobs": _phrase(ratios.proximal),
    "ref_logprobs": "f, the policy that the run starts from",
}
_OWN = "not known of a loss of one's own"


@dataclasses.dataclass(frozen=True)
class ObjectiveReport:
    """The view that an objective has of a run's data.

    Attributes:
        objective: its name.
        formula: of the table; for a user's own loss the first paragraph of its docstring.
        hyperparameters: name and value.
        sources: the data that it requires besides rewards, and the source of each.
        ratio: the policies that are compared; empty if no ratio is taken. For a user's own loss,
            the policies whose log-probs it reads.
        clipping: when masks and weights can act; empty without them. Unknown for a user's own loss.
        dropped: responses that are left out, or stay without effect.
    """

    objective: str
    formula: str
    hyperparameters: dict[str, float]
    sources: dict[str, str]
    ratio: str
    clipping: str
    dropped: tuple[str, ...]


def acts_off_policy(objective: Objective) -> bool:
    """Returns True if a mask, a weight or the term acts only where a ratio is not 1."""
    parts = (objective.term, objective.mask, objective.weight)
    return not objective.term.differentiated and any(RATIO in part.data for part in parts)


def objective_report(
    config: Config, objective: Objective, first_stale: int | None
) -> ObjectiveReport:
    """Reports what the objective sees.

    Args:
        config: the run.
        objective: the loss.
        first_stale: the first step that trains on a group of another policy than the learner's;
            None if every step is on-policy.
    """
    formulas = {row.name: row.formula for row in objectives.algorithm_table()}
    own = objective.term.description or "a loss of your own"
    by_turn = f"; r: {_phrase(objective.returns)}" if objective.returns else ""
    return ObjectiveReport(
        objective.name,
        formulas.get(objective.name, own) + by_turn,
        {name: float(value) for name, value in objective.hyperparameters.items()},
        {name: _source(name, config) for name in sorted(objective.requires)},
        _ratio(config, objective),
        _clipping(config, objective, first_stale),
        tuple(left_out(config, objective)),
    )


def _ratio(config: Config, objective: Objective) -> str:
    """Of a user's own loss: its correction's ratio, and the policies whose log-probs it reads."""
    ratio = (
        f"of {_phrase(objective.level)}, to {_phrase(objective.ratio_reference)}, both at"
        f" temperature {config.sampling.temperature:g} over the full vocabulary"
    )
    if not objective.term.differentiated:
        return ratio if objective.takes_ratio else ""
    read = objective.reads(objective.term)
    policies = [policy for name, policy in _POLICIES.items() if name in read]
    own = f"{_OWN}, which reads the log-probs of {' and of '.join(policies)}" if policies else ""
    return "; ".join(filter(None, (own, objective.correction and f"its correction's: {ratio}")))


def _source(name: str, config: Config) -> str:
    if name in config.objective.stored_fields:
        return f"log-probs that the records of {config.data.path} carry; no forward pass more"
    if config.samples:
        place = "each group's record, written by the sampler"
    else:
        place = f"the records of {config.data.path or config.data.mix}"
    return {
        "old_logprobs": f"log-probs q of the policy that sampled, from {place}",
        "prox_logprobs": (
            "log-probs p of the policy at the start of the update: the step's own, as constants; no"
            " forward pass more"
        ),
        "ref_logprobs": (
            "log-probs f of the policy that the run starts from, after the warm start: one forward"
            " pass more a step"
        ),
        "staleness": "the step less the version in each group's record",
        "expert": "the records' is_expert, and the folders that data.mix marks",
        "rewards": "each group's record",
        "turns": (
            "turns and their rewards, from each group's record; a completion without them is one"
            " turn"
        ),
    }.get(name, "the batch")


def _clipping(config: Config, objective: Objective, first_stale: int | None) -> str:
    if objective.term.differentiated:
        return _OWN
    if not acts_off_policy(objective):
        return ""
    bounds = (part for part in (objective.mask, objective.weight) if RATIO in part.data)
    what = "; ".join(map(_phrase, bounds)) or "the loss depends on the ratio"
    proximal = objective.ratio_reference == ratios.proximal
    if proximal and "proximal" not in config.objective.stored:
        when = "never acts: a step is one update, so p is the policy itself and the ratio is 1"
        if objective.correction:
            when += "; what acts on stale data is the correction e^(p - q)"
    elif stored_data(config):
        when = "can act from the first step on: the data is another policy's"
    elif first_stale is None:
        when = (
            "cannot act: all data is on-policy, the ratio is 1 up to rounding, and every bound lets"
            " it through"
        )
    elif first_stale:
        when = (
            f"can act from step {first_stale} on; before, the data is on-policy and the ratio is 1"
            " up to rounding"
        )
    else:
        when = "can act from the first step on"
    return f"{what}. It {when}."
