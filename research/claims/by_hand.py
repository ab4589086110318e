"""The differences of docs/paper.md from runs.jsonl, with NumPy and SciPy alone.

    python research/claims/by_hand.py research/results/claims/arithmetic/runs.jsonl \
        GRPO REINFORCE final

prints the first algorithm less the second, by the measure "final", "mean" or "early", in
every regime: at the learning rate of the regime, and each at its own best rate.
"""

import json
import sys

import numpy as np
from scipy import stats

COMMON = {"one pass": 2e-3, "reuse 4": 1.25e-4}  # of other regimes 2.5e-4
MEASURES = {"final": np.s_[-4:], "mean": np.s_[1:], "early": np.s_[1:4]}


def regime(run):
    fields = run["regime"]
    if fields["offline"]:
        return "finite" if run["stored"] else "one pass"
    names = [f"{name.removeprefix('sync_')} {value}" for name, value in fields.items()]
    return next(
        (name for name in names if name in ("interval 20", "offset 10", "reuse 4")), "fresh"
    )


def own_rate(side, seeds):
    means = {r: np.mean([side[r][s]["greedy_accuracy"][-4:] for s in seeds]) for r in side}
    return max(sorted(means), key=means.get)


file, first, second, measure = sys.argv[1:]
cells = {}  # by regime, algorithm and rate: results by seed
for run, result in ((line["run"], line["result"]) for line in map(json.loads, open(file))):
    if run["seed"] < 20_000:  # the others are the scan's
        rates = cells.setdefault((regime(run), run["algorithm"]), {})
        rates.setdefault(run["learning_rate"], {})[run["seed"]] = result
for where in dict.fromkeys(name for name, _ in cells):
    sides = [cells.get((where, label), {}) for label in (first, second)]
    one = COMMON.get(where, 2.5e-4)
    common = [{one: side[one]} if len(side.get(one, ())) >= 18 else {} for side in sides]
    own = [{r: runs for r, runs in side.items() if len(runs) >= 18} for side in sides]
    for at, chosen in (("one rate", common), ("own rates", own)):
        if not all(chosen):
            continue
        seeds = sorted(set.intersection(*({*runs} for side in chosen for runs in side.values())))
        for kind in ("greedy_accuracy", "accuracy"):
            values = np.zeros((2, len(seeds)))
            for row, side in zip(values, chosen, strict=True):
                for half in (0, 1):
                    rate = own_rate(side, seeds[1 - half :: 2])
                    curves = [side[rate][s][kind][MEASURES[measure]] for s in seeds[half::2]]
                    row[half::2] = np.mean(curves, axis=1)
            x = values[0] - values[1]
            wide = stats.t.ppf(0.975, x.size - 1) * x.std(ddof=1) / x.size**0.5
            print(
                where,
                at,
                kind,
                f"{x.mean():+.3f} ({x.mean() - wide:+.3f} to {x.mean() + wide:+.3f})",
            )
