"""The algorithms that take part in studies, and how a stranger's joins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grre_jax.errors import UsageError
from grre_jax.objectives import algorithm
from grre_jax.studies.runs import Entry

REINFORCE, GRPO = "REINFORCE", "GRPO"
IS, NARROW, WIDE = "REC-OneSide-IS (.2, .2)", "REC-OneSide-NoIS (.2, .2)", "REC-OneSide-NoIS (.6, 2)"
NARROW_STD, WIDE_STD = f"{NARROW}, std", f"{WIDE}, std"
TWO_SIDE, RING = "REC-TwoSide-NoIS", "REC-Ring-NoIS"
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
# Other coefficients of the regularisers, with their own 0.1 as many as learning rates are tried.
VARIANTS: tuple[Entry, ...] = tuple(
    Entry(f"{label}, {number} {value:g}", name, {number: value})
    for label, name, number in ((OPMD, "opmd_token", "coefficient"), (ASYMRE, "asymre", "beta"))
    for value in (0.03, 0.3, 1.0)
)


def strangers(algorithms: Sequence[str]) -> tuple[Entry, ...]:
    """Entries of algorithms given by name or file.

    Raises:
        UsageError: naming the one that cannot be made.
    """
    entries = []
    for name in algorithms:
        try:
            objective = algorithm(name)
        except ValueError as error:
            raise UsageError(f"--algorithm {name}: {error}") from error
        if "expert" in objective.requires:
            raise UsageError(f"--algorithm {name}: it learns from an expert's responses, and a study has none")
        where = str(Path(name.rpartition(":")[0]).resolve()) + ":" + name.rpartition(":")[2] if ".py:" in name else name
        if objective.name in {entry.label for entry in (*ENTRIES, *VARIANTS, *entries)}:
            raise UsageError(f"--algorithm {name}: there is a {objective.name} already: give the function another name")
        entries.append(Entry(objective.name, where))
    return tuple(entries)
