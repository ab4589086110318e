"""Verdicts of a verdicts.json by another road than the package's: from its cells, with scipy's own
tests and nothing of `judging`.
"""

import numpy as np
from scipy import stats

MARGIN, CEILING = 0.04, 0.98


def verdicts_again(found, claims="claims"):
    """(verdict, outcomes of the core) by claim and kind of accuracy, of one set of seeds; checks
    the differences of the rows, too.
    """
    seeds = found["seeds" if claims == "claims" else "again"]
    cells = {(c["regime"], c["algorithm"], c["rate"]): c for c in found["cells"]}
    not_asked = {row["text"] for row in found["power"] if not row["asked"]}

    def values(regime, label, rate, kind, measure, which):
        cell = cells[regime, label, rate]
        return np.array([cell[kind][measure][cell["seeds"].index(seed)] for seed in which])

    def best(regime, label, measure):
        tuning = found["tuning_seeds"]
        means = [values(regime, label, r, "greedy", measure, tuning).mean() for r in found["rates"]]
        return found["rates"][int(np.argmax(means))]

    def chances(row, kind):
        regime, labels = row["regime"], (row["label"], row["against"])
        rates = [best(regime, label, "final") for label in labels]
        if row["at"] in ("same", "fastest"):
            rates[0] = rates[1]
        if row["at"] == "fastest":
            rates[1] = best(regime, labels[1], "early")
        sides = list(zip(labels, rates, strict=True))
        first, second = (values(regime, *side, kind, row["measure"], seeds) for side in sides)
        difference, limit = first - second, row["threshold"]
        assert np.isclose(difference.mean(), row[kind]["mean"], atol=1e-9), row["text"]

        def above(x, at):
            if np.ptp(x) == 0:
                return 0.5**x.size if x[0] > at else 1.0
            return stats.ttest_1samp(x, at, alternative="greater").pvalue

        if row["relation"] == "within":
            outside = min(above(difference, limit), above(-difference, limit))
            return max(above(difference, -limit), above(-difference, -limit)), 2 * outside
        if row["relation"] == "beats":
            ends = [values(regime, *side, kind, "final", seeds).mean() for side in sides]
            limit = -MARGIN if min(ends) >= CEILING else limit
        return above(difference, limit), above(-difference, -limit)

    def stands(p):
        """Holm by adjusted chances."""
        order = np.argsort(p, kind="stable")
        adjusted = np.empty(len(p))
        adjusted[order] = np.maximum.accumulate((len(p) - np.arange(len(p))) * np.asarray(p)[order])
        return adjusted <= 0.025

    told = {}
    for claim in found[claims]:
        asked = [row for row in claim["core"] if row["text"] not in not_asked]
        for kind in ("greedy", "sampled"):
            pairs = [chances(row, kind) for row in asked]
            right, wrong = (stands([pair[side] for pair in pairs]) for side in (0, 1))
            outcome = {
                row["text"]: "holds" if yes else "fails" if no else "open"
                for row, yes, no in zip(asked, right, wrong, strict=True)
            }
            outcomes = [outcome.get(row["text"], "not asked") for row in claim["core"]]
            known = [one for one in outcomes if one != "not asked"]
            if not known:
                verdict = "not asked"
            elif "fails" in known:
                verdict = "in part" if "holds" in known else "does not"
            else:
                verdict = "open" if "open" in known else "reproduces"
            told[claim["name"], kind] = verdict, outcomes
    return told
