"""Advantages in float64 NumPy, response by response, written from their formulas: what
grre_jax.objectives.advantages is compared with.
"""

import math
from types import SimpleNamespace

import numpy as np

from ..all_objectives import components_of


def advantages(kind, case, o, dropped=None):
    """Advantages [responses] and dropped [responses]; `dropped` is only read by red_drop, whose
    draw is not repeated here.
    """
    count = len(case.groups)
    live = [i for i in range(count) if case.groups[i] >= 0]
    length = {i: int(sum(case.mask[i])) for i in live}
    reward = {i: float(case.rewards[i]) for i in live}
    if getattr(o, "overlong_buffer", None) is not None:
        start = o.max_length - o.overlong_buffer
        reward = {i: reward[i] + min(-(length[i] - start) / o.overlong_buffer, 0.0) for i in live}
    out, drop = np.zeros(count), np.zeros(count, bool)
    if kind == "red_drop":
        drop = np.array(dropped)
    if kind.startswith("decoupled"):
        out = sum(
            advantages("group_std_sample", SimpleNamespace(**{**vars(case), "rewards": part}), o)[0]
            for part in components_of(case.rewards, case.groups).values()
        )
        return standardised(out, kind, live, length, o), drop
    for group in sorted({int(case.groups[i]) for i in live}):
        members = [i for i in live if case.groups[i] == group]
        kept = [i for i in members if not drop[i]]
        values = [reward[i] for i in kept]
        equal = max(values) == min(values)
        for i in kept:
            out[i] = of_response(kind, i, kept, reward, length, o, equal)
            if len(members) == 1 and o.singleton_baseline == "none":
                out[i] = reward[i]
        for i in members:
            drop[i] |= (o.drop_equal and equal) or (
                kind == "positive" and reward[i] <= o.reward_threshold
            )
    if kind == "batch_std":
        deviation = np.std([reward[i] for i in live], ddof=1)
        out /= deviation + o.std_epsilon
    if kind == "gpg":
        out *= len(live) / max(sum(reward[i] != 0 for i in live), 1)
    if kind.startswith("whitened"):
        out = standardised(out, kind, live, length, o)
    return out, drop


def standardised(out, kind, live, length, o):
    """Over the batch: its responses, or its tokens."""
    by_tokens = "whitened" in kind
    weights = {i: length[i] if by_tokens else 1 for i in live}
    count = sum(weights.values())
    mean = sum(weights[i] * out[i] for i in live) / count
    variance = sum(weights[i] * (out[i] - mean) ** 2 for i in live) / (count - 1)
    unit = math.sqrt(variance + 1e-8) if by_tokens else math.sqrt(variance) + o.std_epsilon
    return np.array([(out[i] - mean) / unit if i in live else 0.0 for i in range(len(out))])


def log_mean_exp(values, tau):
    largest = max(values)
    return largest + tau * math.log(
        sum(math.exp((value - largest) / tau) for value in values) / len(values)
    )


def of_response(kind, i, group, reward, length, o, equal):
    """The advantage of response i of a group, before anything that looks at the whole batch."""
    r, values = reward[i], [reward[j] for j in group]
    if kind == "sign":
        return 1.0 if r > o.reward_threshold else -1.0
    if kind == "positive":
        return 1.0 if r > o.reward_threshold else 0.0
    if kind == "whitened_returns":
        return r
    if kind == "none":
        return 0.0
    if equal:
        return o.beta if kind == "asymre" else 0.0
    mean = sum(values) / len(values)
    if kind in ("group_mean", "red_drop", "batch_std", "gpg", "whitened"):
        return r - mean
    if kind in ("group_std", "group_std_sample"):
        deviation = np.std(values, ddof=1 if kind == "group_std_sample" else 0)
        return (r - mean) / (deviation + o.std_epsilon)
    if kind == "rloo":
        return r - sum(reward[j] for j in group if j != i) / (len(group) - 1)
    if kind == "opo":
        return r - sum(length[j] * reward[j] for j in group) / sum(length[j] for j in group)
    if kind == "pass_at_k":
        first, second = sorted(values)[-1], sorted(values)[-2]
        return (first - second) / (np.std(values, ddof=1) + o.std_epsilon) if r == first else 0.0
    if kind == "maxrl":
        return (r - mean) / mean if mean != 0 else 0.0
    if kind == "log_mean_exp":
        return r - log_mean_exp(values, o.tau)
    if kind == "log_mean_exp_leave_one_out":
        return r - log_mean_exp([reward[j] for j in group if j != i], o.tau)
    if kind == "optimal_value":
        return r - log_mean_exp(values, o.beta_1)
    if kind == "asymre":
        return r - mean + o.beta
    raise ValueError(kind)
