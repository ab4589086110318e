"""`algorithm(name, **options)`: makes and validates the `Objective` of a row of the table, or of a
user's own loss.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from grre_jax.objectives import objective as kinds
from grre_jax.objectives.objective import Hyperparameter, Label, Objective, Part, Term, named
from grre_jax.objectives.own_loss import as_term, load_object, with_data
from grre_jax.objectives.parts import ratios
from grre_jax.objectives.parts.penalties import KL, KL_ESTIMATORS, KL_REFERENCES
from grre_jax.objectives.table import BASE, TABLE, Row

# Structural options, with their words or the kind of part that they choose. Without them an
# objective has what its row says, else `BASE`; the KL options apply where there is a KL penalty.
_WORDS: Mapping[str, tuple[str, ...]] = {
    "denominator": ("all", "kept"),
    "singleton_baseline": ("mean", "none"),
    "kl_estimator": KL_ESTIMATORS,
    "kl_reference": tuple(KL_REFERENCES),
}
_KINDS: Mapping[str, type[Part]] = {
    "advantage": kinds.Advantage,
    "returns": kinds.Returns,
    "aggregation": kinds.Aggregation,
    "correction": kinds.Correction,
    "filter": kinds.Filter,
}
# Those that a user's own loss does not take: what it computes, and other names that it may use.
_KINDS_OF_ROWS: Mapping[str, type[Part]] = {
    "term": kinds.Term,
    "mask": kinds.Mask,
    "weight": kinds.Weight,
    "level": kinds.Level,
    "ratio_reference": kinds.RatioReference,
    "shaping": kinds.Shaping,
    "penalty": kinds.Penalty,
}
# Those that may choose several parts, with the fields that they add them to.
_SEVERAL = {"shaping": "shaping", "penalty": "penalties"}
_OF_EVERY_LOSS = {*_KINDS, *_WORDS, "variant", "kl_coef", "components"}


@dataclass(frozen=True)
class AlgorithmRow:
    """An algorithm as a table of algorithms shows it.

    Attributes:
        name: for `algorithm(name)`.
        formula: advantage and loss (or gradient) of a token.
        defaults: its hyperparameters with their defaults (None: must be given), and its
            aggregation.
        variants: values of the option `variant`, the default first.
        requires: the optional data of a batch that it needs, by default.
        paper: title.
        link: of the paper.
    """

    name: str
    formula: str
    defaults: Mapping[str, float | str | None]
    variants: tuple[str, ...]
    requires: frozenset[str]
    paper: str
    link: str


def algorithms() -> tuple[str, ...]:
    """Returns the names that `algorithm` takes.

    Examples:
        >>> from grre_jax import objectives
        >>> [name for name in objectives.algorithms() if "ring" in name]
        ['rec_ring_is', 'rec_ring_nois']
    """
    return tuple(TABLE)


def algorithm_table() -> list[AlgorithmRow]:
    """Returns one row per algorithm, in the order of `algorithms()`.

    Examples:
        Algorithms that need rewards alone, as of completions without log-probs:

        >>> from grre_jax import objectives
        >>> rows = objectives.algorithm_table()
        >>> [row.name for row in rows if not row.requires][:4]
        ['reinforce', 'opmd_minimal', 'opmd_logavgexp', 'asymre']
        >>> next(row.defaults for row in rows if row.name == "asymre")
        {'beta': 0.1, 'aggregation': 'token'}
    """
    rows = []
    for name, row in TABLE.items():
        objective, defaults = _compose(name, row, {})
        paper, link = row.paper
        rows.append(
            AlgorithmRow(
                name=name,
                formula=row.formula,
                defaults=defaults | {"aggregation": objective.aggregation.name},
                variants=tuple(row.variants),
                requires=objective.requires,
                paper=paper,
                link=link,
            )
        )
    return rows


def algorithm(
    name: str | Callable | Term, **options: float | str | Part | Float[Array, "..."]
) -> Objective:
    """Builds the objective of a named algorithm, of a term, or of a user's own loss.

    Options that choose a part take its name, the part itself, or "path/to/file.py:name".

    Args:
        name: one of `algorithms()`; a `Term`; a user's loss (see `own_loss`); or either as
            "path/to/file.py:name".
        **options: hyperparameters of the algorithm (see `algorithm_table()`), which may be traced,
            and its structure. variant: which of several implementations, where a row has them.
            advantage: in place of the row's. returns: "turns" for advantages of turns in place of
            responses. aggregation: "token", "group", "response",
            "response_sum", "constant" (then constant_length is needed) or "sum". denominator:
            "all", or "kept" to leave dropped responses out of the aggregation's counts.
            singleton_baseline: the baseline in a group of one, "mean" (the advantage is 0) or
            "none" (it is the reward). correction: for data whose log-probs another engine took,
            "tis", "tis_sequence", "bounded" or "bounded_sequence" (see `parts.ratios`); ratios are
            then taken to the proximal policy. components: of the reward, by name
            ("correct,format"), where the advantage reads them (gdpo); all that are given otherwise.
            filter: of responses, "opsm", "geometric" or "product", or of turns, "first_turns" (see
            `parts.masks`).
            kl_coef, kl_estimator, kl_reference: a KL penalty, by default "k3" to the "reference"
            policy ("behavior": the data's). It is part of the structure if kl_estimator is given or
            kl_coef is not the number 0. Not of a user's own loss: term, mask, weight, level and
            ratio_reference in place of the row's (a mask or weight of the row that another term
            does not use is left out); shaping and penalty besides the row's, one or several
            ("one,two", or a sequence).

    Returns:
        The `Objective`.

    Raises:
        ValueError: for an unknown name, option or value (with those that there are), or a
            hyperparameter outside its domain.

    Examples:
        An algorithm by its name, and a loss of one's own:

        >>> import jax.numpy as jnp
        >>> from grre_jax import objectives
        >>> named = objectives.algorithm("rec_oneside_nois", epsilon_low=0.6, epsilon_high=2.0)
        >>> named.name, sorted(named.requires), named.hyperparameters
        ('rec_oneside_nois', ['old_logprobs'], {'epsilon_low': 0.6, 'epsilon_high': 2.0})
        >>> def soft_clip(x, *, width=0.5):
        ...     return -x.advantages * width * jnp.tanh(jnp.exp(x.log_ratio) / width)
        >>> own = objectives.algorithm(soft_clip, width=0.3)
        >>> own.name, sorted(own.requires), own.hyperparameters
        ('soft_clip', ['old_logprobs'], {'width': 0.3})
    """
    if isinstance(name, str) and ".py:" in name:
        name = load_object(name)
    if not callable(name):
        return _objective(name, _one_of("algorithm", "name", name, TABLE), options)
    # A part is callable too.
    term = name if isinstance(name, Part) else as_term(name)
    if not isinstance(term, Term) or "term" in options:
        description = f"{type(term).__name__} {term.name} and options {', '.join(options)}"
        raise ValueError(f"algorithm: expected a term, and no option term, got {description}")
    if clash := sorted(_OF_EVERY_LOSS & {each.name for each in term.hyperparameters}):
        raise ValueError(
            f"{term.name}: its hyperparameter {clash[0]} has the name of an option that every loss"
            " takes; call it otherwise"
        )
    objective = _objective(term.name, Row("", ("", ""), {"term": term}), options)
    return with_data(objective) if term.differentiated else objective


def _compose(name: str, row: Row, options: Mapping) -> tuple[Objective, dict[str, float | None]]:
    """Composes the parts of a row, its variant and the options, without hyperparameters; and
    returns the defaults of those.
    """
    options = {option: value for option, value in options.items() if value is not None}
    variant = options.get("variant", next(iter(row.variants)))
    fields = {**BASE, **row.parts, **_one_of(name, "variant", variant, row.variants)}
    defaults = {**row.defaults, **fields.pop("defaults", {})}
    part_kinds = _KINDS if fields["term"].differentiated else {**_KINDS, **_KINDS_OF_ROWS}
    chosen = {
        option: _part(name, option, kind, options[option])
        for option, kind in part_kinds.items()
        if option in options and option not in _SEVERAL
    }
    for option, words in _WORDS.items():
        if option in options:
            chosen[option] = _one_of(name, option, options[option], {word: word for word in words})
    kl = (chosen.pop("kl_estimator", "k3"), chosen.pop("kl_reference", "reference"))
    if "term" in chosen:
        used = chosen["term"].uses
        # Kept, they would still ask for their data and hyperparameters.
        fields |= {option: BASE[option] for option in ("mask", "weight") if option not in used}
    fields |= chosen
    by_default = fields["ratio_reference"] == ratios.behavior and "ratio_reference" not in chosen
    # A correction is e^(p-q): with q as the ratio reference it would be 1.
    if fields.get("correction") and by_default:
        fields["ratio_reference"] = ratios.proximal
    for option, several in _SEVERAL.items():
        if option in part_kinds and option in options:
            added = [
                _part(name, option, part_kinds[option], each) for each in _each(options[option])
            ]
            fields[several] = (*fields.get(several, ()), *added)
    joining = [part for part in row.optional if options.keys() & _declared([part]).keys()]
    fields["shaping"] = (*joining, *fields.get("shaping", ()))
    coefficient = options.get("kl_coef", 0)
    # Without the penalty no reference log-probs are needed. A traced coefficient cannot be compared
    # with 0.
    zero = isinstance(coefficient, int | float) and coefficient == 0
    if "kl_estimator" in options or not zero:
        fields["penalties"] = (*fields.get("penalties", ()), KL[kl])
    if "components" in options:
        fields["components"] = tuple(_each(options["components"]))
        if len({*fields["components"]} - {""}) < len(fields["components"]):
            domain = 'different names, as "correct,format"'
            raise ValueError(f"{name}: components: expected {domain}, got {options['components']}")
    objective = Objective(label=Label(name), **fields)
    _check_structure(objective, chosen)
    declared = _declared(objective.parts).values()
    return objective, {each.name: defaults.get(each.name, each.default) for each in declared}


def _check_structure(objective: Objective, chosen: Mapping) -> None:
    """Checks that every part acts on the term: those of the objective, and the options chosen."""
    term = objective.term
    advantage = objective.advantage
    # These give a response one number, and have no turns.
    by_response = term.of_responses or advantage.drops or advantage.of_components
    unread = {
        "correction": objective.correction and term.of_responses,
        "filter": objective.filter and term.of_responses,
        "returns": objective.returns and by_response,
        # An expert's responses and the others are counted apart, dropped ones among them.
        "denominator": objective.denominator == "kept" and term.separates_experts,
        "mask": "mask" in chosen and "mask" not in term.uses,
        "weight": "weight" in chosen and "weight" not in term.uses,
        "components": objective.components and not advantage.of_components,
        "level": "level" in chosen and not objective.takes_ratio,
        "ratio_reference": "ratio_reference" in chosen and not objective.takes_ratio,
    }
    for option, wrong in unread.items():
        if wrong:
            raise ValueError(
                f"{objective.name}: {option} does not apply to the term {term.name} with the"
                f" advantage {advantage.name}"
            )


def _declared(parts: Iterable[Part]) -> dict[str, Hyperparameter]:
    """Returns the hyperparameters of parts by name."""
    declared: dict[str, Hyperparameter] = {}
    for part in parts:
        for each in part.hyperparameters:
            # One name is one leaf, which all parts that declare it read.
            if declared.setdefault(each.name, each) != each:
                raise ValueError(
                    f"{part.name} declares the hyperparameter {each.name} otherwise than another"
                    " part does: share the record, or call it otherwise"
                )
    return declared


def _objective(name: str, row: Row, options: Mapping) -> Objective:
    """Composes an objective, and checks the options' names and each hyperparameter's domain."""
    objective, defaults = _compose(name, row, options)
    declared = _declared(objective.parts)
    names = {*declared, *_declared(row.optional), *_OF_EVERY_LOSS}
    names |= set() if objective.term.differentiated else {*_KINDS_OF_ROWS}
    for option in options:
        if option not in names:
            raise ValueError(f"{name} has no option {option!r}; it has {', '.join(sorted(names))}")
    values = {
        each: _checked(name, declared[each], options.get(each, default))
        for each, default in defaults.items()
    }
    _check_order(objective, values)
    return replace(objective, hyperparameters=values)


def _one_of(name: str, option: str, value: object, known: Mapping) -> Any:
    """Returns what the word of an option stands for."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}: {option} must be one of {', '.join(known)}, not {value!r}")
    return known[value]


def _each(values: str | Part | Sequence[str | Part]) -> Sequence[str | Part]:
    """Returns the entries of "one,two" or of a sequence."""
    if isinstance(values, str):
        return [value.strip() for value in values.split(",")]
    return values if isinstance(values, list | tuple) else (values,)


def _part(name: str, option: str, kind: type[Part], value: str | Part) -> Part | None:
    """Returns the part that the value of an option names."""
    if isinstance(value, str) and ".py:" in value:
        value = load_object(value)
    if isinstance(value, kind):
        return value
    # Only these may be absent; the "none" of masks and advantages is a part of that name.
    nothing = {"none": None} if option in ("correction", "filter", "returns") else {}
    return _one_of(name, option, value, nothing | dict(named(kind)))


def _checked(name: str, hyperparameter: Hyperparameter, value):
    """Returns a value of a hyperparameter, as a Python float if it is a plain number. Traced values
    cannot be checked and pass.
    """
    if value is None:
        raise ValueError(f"{name}: {hyperparameter.name} must be given ({hyperparameter.meaning})")
    if isinstance(value, jax.core.Tracer):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name}: {hyperparameter.name} must be a number, not {value!r}")
    if not all(hyperparameter.contains(float(entry)) for entry in array.reshape(-1)):
        raise ValueError(
            f"{name}: {hyperparameter.name} must be {hyperparameter.domain}, not {value}"
            f" ({hyperparameter.meaning})"
        )
    return float(value) if array.ndim == 0 and not isinstance(value, jax.Array) else value


def _check_order(objective: Objective, values: Mapping) -> None:
    for order in (order for part in objective.parts for order in part.order):
        pair = (values[order.smaller], values[order.larger])
        # A comparison of traced values has no truth value, one of stacked values has several.
        if any(isinstance(value, jax.core.Tracer) or np.ndim(value) for value in pair):
            continue
        least = float(pair[0]) + order.offset
        if pair[1] < least:
            raise ValueError(
                f"{objective.name}: {order.larger} must be at least {least:g}, not {pair[1]:g}"
                f" ({order.smaller} is {pair[0]:g})"
            )
