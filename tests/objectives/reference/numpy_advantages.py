"""Advantages in float64 NumPy, group by group, written from their formulas: what
grre_jax.objectives.advantages is compared with.
"""

from types import SimpleNamespace

import numpy as np

from ..all_objectives import components_of


def advantages(kind, case, o, dropped=None):
    """Advantages [responses] and dropped [responses]; `dropped` is only read by red_drop, whose
    draw is not repeated here.
    """
    live = case.groups >= 0
    length = case.mask.sum(1)
    reward = np.where(live, case.rewards, 0.0)
    if getattr(o, "overlong_buffer", None) is not None:
        start = o.max_length - o.overlong_buffer
        reward += np.minimum(-(length - start) / o.overlong_buffer, 0.0)
    out = np.zeros(len(live))
    drop = np.array(dropped) if kind == "red_drop" else np.zeros(len(live), bool)
    if kind.startswith("decoupled"):
        for part in components_of(case.rewards, case.groups).values():
            component = SimpleNamespace(**vars(case) | {"rewards": part})
            out += advantages("group_std_sample", component, o)[0]
        return standardised(out, kind, live, length, o), drop
    for group in set(case.groups[live]):
        members = case.groups == group
        kept = members & ~drop
        alone = members.sum() == 1 and o.singleton_baseline == "none"
        r = reward[kept]
        out[kept] = r if alone else of_group(kind, r, length[kept], o)
        if kind == "positive":
            drop |= members & (reward <= o.reward_threshold)
        if o.drop_equal and np.ptp(r) == 0:
            drop |= members
    if kind == "batch_std":
        out /= np.std(reward[live], ddof=1) + o.std_epsilon
    if kind == "gpg":
        out *= live.sum() / max((reward[live] != 0).sum(), 1)
    if kind.startswith("whitened"):
        out = standardised(out, kind, live, length, o)
    return out, drop


def standardised(out, kind, live, length, o):
    """Over the batch: its responses, or its tokens."""
    by_tokens = "whitened" in kind
    weights = live * (length if by_tokens else 1)
    mean = np.average(out, weights=weights)
    variance = np.sum(weights * (out - mean) ** 2) / (weights.sum() - 1)
    unit = np.sqrt(variance + 1e-8) if by_tokens else np.sqrt(variance) + o.std_epsilon
    return live * (out - mean) / unit


def log_mean_exp(values, tau):
    largest = max(values)
    return largest + tau * np.log(np.mean(np.exp((values - largest) / tau)))


def of_group(kind, r, length, o):
    """The advantages of a group's responses, before anything that looks at the whole batch."""
    if kind in ("sign", "positive"):
        return np.where(r > o.reward_threshold, 1.0, -1.0 if kind == "sign" else 0.0)
    if kind == "whitened_returns":
        return r
    if np.ptp(r) == 0 or kind == "none":
        return o.beta if kind == "asymre" else 0.0
    mean = r.mean()
    others = [np.delete(r, i) for i in range(len(r))]
    second, first = sorted(r)[-2:]
    formulas = {
        "group_std": lambda: (r - mean) / (r.std() + o.std_epsilon),
        "group_std_sample": lambda: (r - mean) / (r.std(ddof=1) + o.std_epsilon),
        "rloo": lambda: r - np.mean(others, 1),
        "opo": lambda: r - np.average(r, weights=length),
        "pass_at_k": lambda: (r == first) * (first - second) / (r.std(ddof=1) + o.std_epsilon),
        "maxrl": lambda: (r - mean) / mean if mean != 0 else 0.0,
        "log_mean_exp": lambda: r - log_mean_exp(r, o.tau),
        "log_mean_exp_leave_one_out": lambda: r - [log_mean_exp(x, o.tau) for x in others],
        "optimal_value": lambda: r - log_mean_exp(r, o.beta_1),
        "asymre": lambda: r - mean + o.beta,
    }
    if kind in ("group_mean", "red_drop", "batch_std", "gpg", "whitened"):
        return r - mean
    return formulas[kind]()
