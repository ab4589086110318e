"""The algorithms that take part in studies, and entries of others."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grre_jax.errors import UsageError
from grre_jax.objectives import algorithm
from research.runs import Entry

REINFORCE, GRPO = "REINFORCE", "GRPO"
IS, NARROW, WIDE = (
    "REC-OneSide-IS (.2, .2)",
    "REC-OneSide-NoIS (.2, .2)",
    "REC-OneSide-NoIS (.6, 2)",
)
NARROW_STD, WIDE_STD = f"{NARROW}, std", f"{WIDE}, std"
TWO_SIDE, RING = "REC-TwoSide-NoIS", "REC-Ring-NoIS"
WIDE_IS, TWO_SIDE_IS, RING_IS = "REC-OneSide-IS (.6, 2)", "REC-TwoSide-IS", "REC-Ring-IS"
OPMD, ASYMRE, DROP, WEIGHT = "OPMD", "AsymRE", "RED-Drop", "RED-Weight"

_WIDE = {"epsilon_low": 0.6, "epsilon_high": 2.0}
ENTRIES: tuple[Entry, ...] = (
    Entry(REINFORCE, "reinforce"),
    Entry(GRPO, "grpo", {"aggregation": "token"}),
    Entry(IS, "rec_oneside_is"),
    Entry(NARROW, "rec_oneside_nois"),
    Entry(WIDE, "rec_oneside_nois", _WIDE),
    Entry(NARROW_STD, "rec_oneside_nois", {"variant": "std"}),
    Entry(WIDE_STD, "rec_oneside_nois", {**_WIDE, "variant": "std"}),
    Entry(TWO_SIDE, "rec_twoside_nois"),
    Entry(RING, "rec_ring_nois"),
    Entry(OPMD, "opmd_token"),
    Entry(ASYMRE, "asymre"),
    Entry(DROP, "red_drop"),
    Entry(WEIGHT, "red_weight"),
)
# The paper's further arms with importance weights.
WEIGHTED: tuple[Entry, ...] = (
    Entry(WIDE_IS, "rec_oneside_is", _WIDE),
    Entry(TWO_SIDE_IS, "rec_twoside_is"),
    Entry(RING_IS, "rec_ring_is"),
)
# AsymRE with three times the paper's coefficient.
ASYMRE_STRONG = f"{ASYMRE}, beta 0.3"
STRONG: tuple[Entry, ...] = (Entry(ASYMRE_STRONG, "asymre", {"beta": 0.3}),)
# Of later papers, beside GRPO: a relaxed clip with the veto of negative responses (arXiv
# 2605.17570), whose bounds its abstract leaves open, and steps scaled by the effective sample size
# (arXiv 2602.17616).
VETO, SCALED = f"{GRPO}, relaxed clip and veto", f"{GRPO}, steps by ESS"
LATER: tuple[Entry, ...] = (
    Entry(VETO, "grpo_veto", {"aggregation": "token", "veto_low": 0.4, "veto_high": 3.0}),
    Entry(SCALED, "grpo", {"aggregation": "token"}, ess_exponent=0.5),
)
KNOWN = (*ENTRIES, *WEIGHTED, *STRONG, *LATER)


def strangers(algorithms: Sequence[str]) -> tuple[Entry, ...]:
    """Returns entries of algorithms given by name or file, with their numbers in brackets if they
    differ from the defaults: "dr_grpo(constant_length=12)", "own.py:mine(width=0.3)".

    A label is the name with the numbers that were given.

    Raises:
        UsageError: naming the one that cannot be made.
    """
    entries = []
    for given in algorithms:
        name, options = _parsed(given)
        if ".py:" not in name and re.search(r"[.:/\\]", name):
            raise UsageError(f"--algorithm {given}: a loss of your own is named FILE.py:FUNCTION")
        try:
            objective = algorithm(name, **options)
        except ValueError as error:
            hint = (
                f"; say it in brackets: --algorithm '{name}(NUMBER=VALUE)'"
                if "must be given" in str(error)
                else ""
            )
            raise UsageError(f"--algorithm {given}: {error}{hint}") from error
        if "expert" in objective.requires:
            raise UsageError(
                f"--algorithm {given}: it learns from an expert's responses, and a study has none"
            )
        if objective.advantage.of_components:
            raise UsageError(
                f"--algorithm {given}: it normalises the components of a reward apart, and the"
                " rewards of a study have none"
            )
        where = (
            str(Path(name.rpartition(":")[0]).resolve()) + ":" + name.rpartition(":")[2]
            if ".py:" in name
            else name
        )
        label = ", ".join(
            (objective.name, *(f"{option} {value}" for option, value in options.items()))
        )
        if label in {entry.label for entry in (*KNOWN, *entries)}:
            raise UsageError(
                f"--algorithm {given}: there is a {label} already: give the function another name"
            )
        entries.append(Entry(label, where, options))
    return tuple(entries)


def _parsed(given: str) -> tuple[str, dict[str, Any]]:
    """A name and the options in the brackets after it; a bare word among these is text."""
    found = re.fullmatch(r"(.*\w)\s*\((.*)\)", given)
    if found is None:
        return given, {}
    name, inside = found.groups()
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        if call.args or None in {word.arg for word in call.keywords}:
            raise ValueError("a value has no name")
        return name, {
            word.arg: (
                word.value.id if isinstance(word.value, ast.Name) else ast.literal_eval(word.value)
            )
            for word in call.keywords
        }
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"--algorithm {given}: what is in brackets are its numbers by name:"
            f" '{name}(NUMBER=VALUE, NUMBER=VALUE)' ({error})"
        ) from error
