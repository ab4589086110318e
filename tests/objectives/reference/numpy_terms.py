"""The loss terms of every algorithm in float64 NumPy, written from their formulas: (value,
derivative with respect to the log-prob of a token).

A term is given a response r, the options o and the batch b that numpy_reference makes. Whatever a
formula holds constant is formed from `r.fixed`, the rest from `r.l`. Branches taken are noted in
`b.seen`.
"""

import math

import numpy as np


class Seen(set):
    """Branches taken, as (kind, whether): each function returns what the branch depends on."""

    def note(self, kind, condition):
        self.add((kind, bool(condition)))
        return condition

    def mask(self, passes, advantage):
        if advantage != 0:
            self.note("mask of gains" if advantage > 0 else "mask of losses", passes)
        return passes

    def clip(self, value, low, high):
        self.note("below", value < low)
        self.note("above", value > high)
        return min(max(value, low), high)

    def cap(self, value, highest):
        self.note("cap", value > highest)
        return min(value, highest)


# ---- token terms: (value, derivative with respect to the log-prob of this token); r is a response,
# b the batch


def coefficient(r, t, c):
    return -c * r.A * r.l[t], -c * r.A


def ppo(ratio, advantage, low, high, seen):
    """PPO's clipped loss of a ratio, and its derivative with respect to the log of the ratio."""
    clipped = min(max(ratio, low), high)
    if seen.mask(ratio * advantage <= clipped * advantage, advantage):
        return -ratio * advantage, -ratio * advantage
    return -clipped * advantage, 0.0


def bounds(o):
    return 1 - o.epsilon_low, 1 + o.epsilon_high


def one_side(x, advantage, o):
    low, high = bounds(o)
    return (advantage >= 0 and x <= high) or (advantage <= 0 and x >= low)


def two_side(x, advantage, o):
    low, high = bounds(o)
    return low <= x <= high


def ring(x, advantage, o):
    return two_side(x, advantage, o) or outer(x, advantage, o)


def outer(x, advantage, o):
    return (advantage >= 0 and x <= 1 - o.epsilon_low_prime) or (
        advantage <= 0 and x >= 1 + o.epsilon_high_prime
    )


def reinforce(r, t, o, b):
    return coefficient(r, t, 1.0)


def rec(mask, weight, x=lambda r, t: r.rho[t]):
    def term(r, t, o, b):
        passes = b.seen.mask(mask(x(r, t), r.A, o), r.A)
        if mask is ring and r.A != 0 and outer(x(r, t), r.A, o):
            b.seen.note("ring", r.A > 0)
        return coefficient(r, t, weight(r, t, o, b) if passes else 0.0)

    return term


def plain(r, t, o, b):
    return 1.0


def importance(r, t, o, b):
    return r.rho[t]


def truncated(r, t, o, b):
    return b.seen.clip(r.rho[t], 1 - o.epsilon_low_prime, 1 + o.epsilon_high_prime)


def sequence_ratio(r, t, o=None, b=None):
    return r.s


def aspo_weight(r, t, o, b):
    return b.seen.cap(1 / r.rho[t] if r.A > 0 else r.rho[t], o.weight_cap)


def grpo(r, t, o, b):
    return ppo(r.ratio[t], r.A, *bounds(o), b.seen)


def dual_clip(r, t, o, b):
    value, slope = grpo(r, t, o, b)
    if r.A < 0 and b.seen.note("cap", value > -o.dual_clip * r.A):
        return -o.dual_clip * r.A, 0.0
    return value, slope


def grpo_two_sided(r, t, o, b):
    ratio = b.seen.cap(r.ratio[t], o.delta)
    value, slope = ppo(ratio, r.A, *bounds(o), b.seen)
    return value, slope if r.ratio[t] <= o.delta else 0.0


def gspo(r, t, o, b):
    return ppo(r.s_moving, r.A, *bounds(o), b.seen)


def cispo_absolute(r, t, o, b):
    return coefficient(r, t, b.seen.clip(r.rho[t], o.clip_low, o.clip_high))


def cispo_epsilon(r, t, o, b):
    return coefficient(r, t, b.seen.clip(r.rho[t], *bounds(o)))


def gmpo(r, t, o, b):
    direction = np.sign(r.A)
    exponent, free = 0.0, True
    for k in range(r.n):
        d = math.log(r.ratio[k])
        limited = min(max(d, -o.log_epsilon_low), o.log_epsilon_high)
        exponent += direction * min(direction * d, direction * limited) / r.n
        if k == t:
            free = b.seen.mask(direction * d <= direction * limited, r.A)
    value = -r.A * math.exp(exponent)
    return value, value if free else 0.0


def sapo(r, t, o, b):
    tau = o.tau_positive if b.seen.note("sign", r.A > 0) else o.tau_negative
    gate = 1 / (1 + math.exp(-tau * (r.ratio[t] - 1)))
    return -r.A * 4 / tau * gate, -r.A * 4 * gate * (1 - gate) * r.ratio[t]


def topr(which):
    def term(r, t, o, b):
        if b.seen.note("sign", r.A > 0):
            return coefficient(r, t, 1.0)
        return coefficient(
            r, t, b.seen.cap({"sequence": r.W, "token": r.rho[t], "normalized": r.s}[which], 1.0)
        )

    return term


def damped(r, t, o, b):
    return coefficient(r, t, 1 / (1 + o.tau))


def with_square(r, t, o, b, coefficient):
    """REINFORCE and a penalty on the square of the log-ratio."""
    value, slope = reinforce(r, t, o, b)
    moved = r.l[t] - r.base[t]
    return value + coefficient * moved**2, slope + 2 * coefficient * moved


def opmd_token(r, t, o, b):
    return with_square(r, t, o, b, o.coefficient)


def dro(r, t, o, b):
    return with_square(r, t, o, b, o.dro_beta / 2)


def red_weight(r, t, o, b):
    return coefficient(r, t, math.exp(r.A / o.tau))


def m2po(r, t, o, b):
    chosen = b.seen.note("chosen", (r.i, t) in b.state)
    return (0.0, 0.0) if chosen else ratio_itself(r, t, o, b)


def ratio_itself(r, t, o, b):
    return -r.A * r.ratio[t], -r.A * r.ratio[t]


def grpo_veto(r, t, o, b):
    before = r.rho[:t] if r.A < 0 else []
    outside = any(x < o.veto_low or x > o.veto_high for x in before)
    vetoed = b.seen.note("chosen", outside)
    passes = b.seen.mask(one_side(r.rho[t], r.A, o), r.A)
    return ratio_itself(r, t, o, b) if passes and not vetoed else (0.0, 0.0)


def r2vpo(r, t, o, b):
    apart = r.ratio[t] - 1
    slope = -r.A * r.ratio[t] + 2 * o.variance_coef * apart * r.ratio[t]
    return -r.A * r.ratio[t] + o.variance_coef * apart**2, slope


def distill(weight):
    def term(r, t, o, b):
        c = (r.fixed[t] - r.f[t]) * weight(r, t, o, b)
        return c * (1 + r.l[t] - r.fixed[t]), c

    return term


def dppo(r, t, o, b, passes):
    return coefficient(r, t, b.seen.cap(r.rho[t], o.ratio_cap) if b.seen.mask(passes, r.A) else 0.0)


def dppo_tv(r, t, o, b):
    moved = math.exp(r.fixed[t]) - math.exp(r.base[t])
    return dppo(r, t, o, b, moved <= o.divergence_high if r.A > 0 else moved >= -o.divergence_low)


def dppo_kl(r, t, o, b):
    new, old = math.exp(r.fixed[t]), math.exp(r.base[t])
    kl = old * math.log(old / new) + (1 - old) * math.log((1 - old + 1e-8) / (1 - new + 1e-8))
    if r.A > 0:
        return dppo(r, t, o, b, kl <= o.divergence_high or new <= old)
    return dppo(r, t, o, b, kl <= o.divergence_low or new >= old)


def vespo(r, t, o, b):
    positive = b.seen.note("sign", r.A >= 0)
    k, lam = (o.k_positive, o.lambda_positive) if positive else (o.k_negative, o.lambda_negative)
    return coefficient(r, t, math.exp(lam + k * math.log(r.W) - lam * r.W))


def bapo(r, t, o, b):
    return ppo(r.ratio[t], r.A, *b.state, b.seen)


def gepo(r, t, o, b):
    return ppo(math.exp(sum(r.l) / r.n) / b.state[r.group], r.A, *bounds(o), b.seen)


def clip_cov(r, t, o, b):
    chosen = b.seen.note("chosen", (r.i, t) in b.state)
    return (0.0, 0.0) if chosen else grpo(r, t, o, b)


def kl_cov(r, t, o, b):
    value = -r.A * r.ratio[t]
    if not b.seen.note("chosen", (r.i, t) in b.state):
        return value, value
    d = math.log(r.ratio[t])
    return value + o.covariance_kl * abs(d), value + o.covariance_kl * np.sign(d)


def chord(phi):
    def term(r, t, o, b):
        if b.seen.note("expert", r.expert):
            p = math.exp(r.fixed[t])
            c = o.expert_weight * (p * (1 - p) if phi else 1.0)
            return -c * r.l[t], -c
        value, slope = grpo(r, t, o, b)
        return (1 - o.expert_weight) * value, (1 - o.expert_weight) * slope

    return term


# ---- what is decided over the whole batch


def tokens_of(b):
    return [(r, t) for r in b.responses for t in range(r.n)]


def m2po_dropped(o, b):
    kept = sorted(
        (math.log(r.rho[t]) ** 2, r.i, t)
        for r, t in tokens_of(b)
        if (r.A > 0 and r.rho[t] > 1) or (r.A < 0 and r.rho[t] < 1)
    )
    dropped = set()
    while kept and sum(square for square, _, _ in kept) / len(kept) > o.m2_threshold:
        dropped.add(kept.pop()[1:])
    return dropped


def bapo_bounds(o, b):
    low, high = o.ratio_low_start, o.ratio_high_start

    def unbalanced():
        gain = sum(r.A * min(r.rho[t], high) for r, t in tokens_of(b) if r.A >= 0)
        loss = sum(-r.A * max(r.rho[t], low) for r, t in tokens_of(b) if r.A < 0)
        return loss > 0 and gain / loss < o.balance_target

    while low < o.ratio_low_end and unbalanced():
        low = min(low + o.ratio_step, o.ratio_low_end)
    while high < o.ratio_high_end and unbalanced():
        high = min(high + o.ratio_step, o.ratio_high_end)
    # Raising the lower bound only makes the negative part greater: what was not balanced at its
    # start is not before its end.
    b.seen.note("low at its end", low == o.ratio_low_end)
    b.seen.note("high at its start", high == o.ratio_high_start)
    b.seen.note("high at its end", high == o.ratio_high_end)
    return low, high


def gepo_expected(o, b):
    """Of each group; a response without tokens has no mean and is left out."""
    expected = {}
    for group in {r.group for r in b.responses}:
        means = [math.exp(sum(r.base) / r.n) for r in b.responses if r.group == group and r.n]
        expected[group] = sum(q * q for q in means) / sum(means) if means else 1.0
    return expected


def highest_covariance(skip_clipped):
    def chosen(o, b):
        tokens = tokens_of(b)
        mean_advantage = sum(r.A for r, _ in tokens) / len(tokens)
        mean_logprob = sum(r.fixed[t] for r, t in tokens) / len(tokens)
        covariances = {
            (r.i, t): (r.A - mean_advantage) * (r.fixed[t] - mean_logprob)
            for r, t in tokens
            if not (skip_clipped and r.A != 0 and not one_side(r.rho[t], r.A, o))
        }
        count = max(1, math.floor(o.covariance_fraction * len(tokens)))
        ordered = sorted(covariances.values(), reverse=True)
        first_out = ordered[count] if count < len(ordered) else -math.inf
        # Where all that stand highest are tied, all of them.
        tied = ordered[0] == first_out > 0
        return {
            place
            for place, value in covariances.items()
            if value > first_out or (tied and value == first_out)
        }

    return chosen
