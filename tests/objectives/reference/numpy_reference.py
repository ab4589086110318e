"""Every algorithm in float64 NumPy, written from the formulas alone: what grre_jax.objectives is
compared with.

`evaluate` takes a case (arrays [responses, time] logprobs, old, prox, ref, mask; [responses]
rewards, groups, expert, staleness) and gives advantages and the loss. Whatever a formula holds
constant is taken at `case.logprobs`, the rest at `moving`: a step of `moving` along the imaginary
axis gives the gradient (complex-step differences, which cost no digits).
"""

from types import SimpleNamespace

import numpy as np

from .numpy_advantages import advantages
from .numpy_terms import ROWS


def responses_of(name, case, moving, o, advantage):
    """The live responses, each with the log-probs of its own tokens alone."""
    for i in np.flatnonzero(case.groups >= 0):
        where = case.mask[i]
        arrays = moving, case.logprobs, case.old, case.prox, case.ref
        now, fixed, q, p, f = (array[i, where] for array in arrays)
        if name == "log_linear_proximal":
            p = q + (1 - 1 / max(case.staleness[i], 1)) * (fixed - q)
        base = q if o.correction == "none" else p
        n, S, S_moving = len(q), sum(fixed - base), sum(now - base)
        s, s_moving = np.exp(S / max(n, 1)), np.exp(S_moving / max(n, 1))
        yield SimpleNamespace(
            i=i, n=n, group=case.groups[i], A=advantage[i], reward=case.rewards[i], expert=case.expert[i],
            l=now, fixed=fixed, q=q, p=p, f=f, base=base, rho=np.exp(fixed - base), ratio=np.exp(now - base),
            S=S, S_moving=S_moving, s=s, s_moving=s_moving, W=np.exp(S), D=sum(now - f),
        )  # fmt: skip


def size(r, o, counted):
    """What a response is divided by, given the responses that count."""
    groups = [other.group for other in counted]
    sizes = {
        "token": lambda: max(sum(other.n for other in counted), 1),
        "response": lambda: max(r.n, 1) * len(counted),
        "response_sum": lambda: len(counted),
        "group": lambda: groups.count(r.group) * len(set(groups)),
        "constant": lambda: len(counted) * o.constant_length,
        "sum": lambda: 1,
    }
    return sizes[o.aggregation]()


def passes_filter(r, o):
    """Whether the policy-gradient term of a response counts."""
    if o.filter == "none" or not r.n:
        return True
    moved = r.fixed - r.q
    divergence = {
        "opsm": lambda: r.A >= 0 or -moved.mean() <= o.opsm_delta,
        "largest_divergence": lambda: max(moved**2 / 2) <= o.token_divergence,
        "divergences": lambda: (
            max(moved**2 / 2) <= o.token_divergence
            and np.mean(np.exp(moved) - 1 - moved) <= o.mean_divergence
        ),
        "geometric": lambda: o.sequence_low <= np.exp(moved.mean()) <= o.sequence_high,
        "product": lambda: o.sequence_low <= np.exp(moved.sum()) <= o.sequence_high,
    }
    return divergence[o.filter]()


def correction_weight(r, o):
    """The weight of each token for the gap between the sampling and the proximal policy."""
    if o.correction == "none":
        return np.ones(r.n)
    gap = r.p - r.q
    weight = np.exp(np.full(r.n, gap.sum()) if "sequence" in o.correction else gap)
    if "tis" in o.correction:
        return np.minimum(weight, o.correction_cap)
    return weight * ((weight >= o.correction_low) & (weight <= o.correction_high))


def kl_term(r, o):
    """A KL estimate of each token."""
    gap = r.l - (r.f if o.kl_reference == "reference" else r.q)
    k3 = np.exp(-gap) - 1 + gap
    return {"k1": gap, "k2": gap**2 / 2, "k3": k3, "k3_is": np.exp(r.l - r.q) * k3}[o.kl_estimator]


def evaluate(name, variant, case, options, dropped, moving):
    """Advantages [responses] and loss of an algorithm with `options` over its defaults."""
    entry = ROWS[name, variant]
    o = SimpleNamespace(**entry.options | options)
    advantage, dropped = advantages(o.advantage, case, o, dropped)
    responses = list(responses_of(name, case, moving, o, advantage))
    b = SimpleNamespace(responses=responses)
    b.state = entry.prepare(o, b) if entry.prepare else None
    loss = 0.0
    counted = [r for r in responses if o.denominator == "all" or not dropped[r.i]]
    for r in (r for r in counted if r.n):
        value = entry.response(r, o, b) if entry.response else 0.0
        if passes_filter(r, o) and entry.term:
            value += np.sum(correction_weight(r, o) * entry.term(r, o, b))
        value += o.kl_coef * np.sum(kl_term(r, o))
        own = [other for other in counted if other.expert == r.expert or not entry.split]
        loss += value / size(r, o, own)
    return advantage, loss
