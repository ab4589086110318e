"""Every algorithm in float64 NumPy, token by token, written from the formulas alone: what
grre_jax.objectives is compared with.

`evaluate` takes a case (arrays [responses, time] logprobs, old, prox, ref, mask; [responses]
rewards, groups, expert, staleness) and gives advantages, loss and gradient. Whatever a formula
holds constant is taken at `case.logprobs`, the rest at `moving`: finite differences over `moving`
must give the gradient.
"""

import math
from types import SimpleNamespace

import numpy as np

from . import numpy_terms as terms
from .numpy_advantages import advantages

# What every algorithm has unless its row or the caller says otherwise.
OPTIONS = {
    "singleton_baseline": "mean",
    "denominator": "all",
    "correction": "none",
    "filter": "none",
    "kl_coef": 0.0,
    "kl_estimator": "k3",
    "kl_reference": "reference",
    "drop_equal": False,
}


# ---- response terms: (value, derivative with respect to the log-prob of each of its tokens)


def squared(r, o, b):
    return o.tau / 2 * r.S_moving**2, o.tau * r.S_moving


def openkimi(r, o, b):
    gap = r.A / o.tau - r.S_moving
    return o.tau / 2 * gap**2, -o.tau * gap


def gvpo(r, o, b):
    group = [other for other in b.responses if other.group == r.group]
    if len(group) == 1:
        return 0.0, 0.0
    gap = (
        o.gvpo_beta * r.S_moving - sum(o.gvpo_beta * other.S for other in group) / len(group) - r.A
    )
    scale = len(group) / (len(group) - 1)
    return scale / 2 * gap**2, scale * gap * o.gvpo_beta


def astar_po(r, o, b):
    gap = o.beta_2 * r.D - r.A
    return gap**2, 2 * gap * o.beta_2


def oapl(r, o, b):
    gap = o.beta_2 * r.S_moving - r.A
    return gap**2, 2 * gap * o.beta_2


def pairs(loss):
    """The mean of a loss of D_i - D_j over the pairs with r_i > r_j and tokens, counted where i
    is; `loss` gives value and derivative.
    """

    def term(r, o, b):
        pairs = [
            (i, j)
            for i in b.responses
            for j in b.responses
            if i.n and j.n and i.group == j.group and i.reward > j.reward
        ]
        value = slope = 0.0
        for i, j in pairs:
            amount, derivative = loss(i.D - j.D, o)
            value += amount / len(pairs) * (i is r)
            slope += derivative / len(pairs) * ((i is r) - (j is r))
        return value, slope

    return term


def dpo(x, o):
    return math.log1p(math.exp(-o.dpo_beta * x)), -o.dpo_beta / (1 + math.exp(o.dpo_beta * x))


def ipo(x, o):
    return (x - 1 / (2 * o.ipo_beta)) ** 2, 2 * (x - 1 / (2 * o.ipo_beta))


# ---- the algorithms


def row(
    advantage, term=None, aggregation="token", *, response=None, prepare=None, split=False, **given
):
    """One algorithm: default advantage, token term, aggregation, response term, what it decides
    over the batch, whether experts are counted apart, and options and numbers.
    """
    options = OPTIONS | {"advantage": advantage, "aggregation": aggregation}
    numbers = {"std_epsilon": 1e-6} if advantage in STANDARDISED else {}
    for name, value in given.items():
        (options if name in options else numbers)[name] = value
    return SimpleNamespace(
        term=term, options=options, response=response, prepare=prepare, split=split, numbers=numbers
    )


STANDARDISED = ("group_std", "group_std_sample", "decoupled_whitened", "pass_at_k")
CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.2}
RING = {**CLIP, "epsilon_low_prime": 0.6, "epsilon_high_prime": 2.0}
TINY = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
DPPO = {"divergence_low": 0.2, "divergence_high": 0.2, "ratio_cap": 3.0}
VESPO = {
    "k_positive": 2.0,
    "lambda_positive": 3.0,
    "k_negative": 3.0,
    "lambda_negative": 2.0,
}
BAPO = {
    "ratio_low_start": 0.6,
    "ratio_low_end": 0.8,
    "ratio_high_start": 1.2,
    "ratio_high_end": 2.0,
    "ratio_step": 0.05,
    "balance_target": 1.0,
}


def grpo(**given):
    """GRPO, with other options and numbers."""
    return row("group_std", terms.grpo, **CLIP, **given)


# By name and variant; the first variant of an algorithm is its default.
ROWS = {
    **{
        f"topr {which}": row("sign", terms.topr(which), "response", reward_threshold=0.0)
        for which in ("sequence", "token", "normalized")
    },
    "reinforce mean": row("group_mean", terms.reinforce),
    "reinforce std": row("group_std", terms.reinforce),
    "dr_grpo default": row("group_mean", terms.grpo, "constant", **CLIP, constant_length=10.0),
    "gdpo response": row("decoupled", terms.grpo, **CLIP, std_epsilon=1e-4),
    "gdpo token": row("decoupled_whitened", terms.grpo, **CLIP),
    "dapo default": row(
        "group_std",
        terms.grpo,
        denominator="kept",
        drop_equal=True,
        epsilon_low=0.2,
        epsilon_high=0.28,
    ),
    "cispo absolute": row("group_std", terms.cispo_absolute, clip_low=0.0, clip_high=5.0),
    "cispo epsilon": row("group_std", terms.cispo_epsilon, epsilon_low=1.0, epsilon_high=0.28),
    "gmpo default": row(
        "group_std", terms.gmpo, "response", log_epsilon_low=0.4, log_epsilon_high=0.4
    ),
    "sapo default": row("group_std", terms.sapo, "response", tau_positive=1.0, tau_negative=1.05),
    "truncated_is default": row("group_mean", terms.cispo_absolute, clip_low=0.0, clip_high=1.0),
    "opmd kimi": row("group_mean", terms.reinforce, "group", response=squared, tau=0.1),
    "opmd openkimi": row("group_mean", None, "response", response=openkimi, tau=0.1),
    "opmd_minimal default": row("group_mean", terms.damped, tau=1.0),
    "opmd_token default": row("group_mean", terms.opmd_token, coefficient=0.1),
    "opmd_logavgexp mean": row("log_mean_exp", terms.damped, tau=1.0),
    "opmd_logavgexp leave_one_out": row("log_mean_exp_leave_one_out", terms.damped, tau=0.01),
    "asymre default": row("asymre", terms.reinforce, beta=0.1),
    "red_drop default": row("red_drop", terms.reinforce),
    "red_weight default": row("group_mean", terms.red_weight, tau=1.0),
    "decoupled_ppo default": grpo(correction="bounded", correction_low=0.0, correction_high=5.0),
    "log_linear_proximal default": grpo(
        correction="bounded", correction_low=0.0, correction_high=5.0
    ),
    "tis token": grpo(correction="tis", correction_cap=2.0),
    "tis sequence": grpo(correction="tis_sequence", correction_cap=2.0),
    "icepop default": grpo(correction="bounded", correction_low=0.5, correction_high=5.0),
    "sequence_mask geometric": grpo(filter="geometric", sequence_low=0.999, sequence_high=1.001),
    "sequence_mask product": grpo(filter="product", sequence_low=0.5, sequence_high=2.0),
    "opsm default": grpo(filter="opsm", opsm_delta=0.1),
    "m2po default": row("group_std", terms.m2po, prepare=terms.m2po_dropped, m2_threshold=0.04),
    "dppo_tv default": row("group_std", terms.dppo_tv, **DPPO),
    "dppo_kl default": row("group_std", terms.dppo_kl, **DPPO),
    "vespo default": row("group_std", terms.vespo, **VESPO),
    "bapo default": row("group_std", terms.bapo, prepare=terms.bapo_bounds, **BAPO),
    "aspo default": row(
        "group_std", terms.rec(terms.one_side, terms.aspo_weight), **CLIP, weight_cap=3.0
    ),
    "gepo default": row("group_std", terms.gepo, "response", prepare=terms.gepo_expected, **CLIP),
    "dro default": row("group_mean", terms.dro, dro_beta=0.3),
    "gvpo default": row("group_mean", None, "group", response=gvpo, gvpo_beta=0.2),
    "astar_po default": row(
        "optimal_value", None, "response_sum", response=astar_po, beta_1=0.5, beta_2=1e-3
    ),
    "oapl default": row(
        "optimal_value", None, "response_sum", response=oapl, beta_1=1.0, beta_2=1e-3
    ),
    "trm max": row(
        "group_std",
        terms.ratio_itself,
        "response_sum",
        filter="largest_divergence",
        token_divergence=0.05,
    ),
    "trm both": row(
        "group_std",
        terms.ratio_itself,
        "response_sum",
        filter="divergences",
        token_divergence=0.1,
        mean_divergence=0.002,
    ),
    "grpo_veto default": row(
        "group_std",
        terms.grpo_veto,
        epsilon_low=0.6,
        epsilon_high=2.0,
        veto_low=0.7,
        veto_high=1.5,
    ),
    "r2vpo default": row("group_std", terms.r2vpo, variance_coef=0.3),
    "distill own": row("none", terms.distill(terms.plain)),
    "distill stored": row("none", terms.distill(terms.importance)),
    "clip_cov default": row(
        "group_std",
        terms.clip_cov,
        prepare=terms.highest_covariance(True),
        **CLIP,
        covariance_fraction=2e-4,
    ),
    "kl_cov default": row(
        "group_std",
        terms.kl_cov,
        prepare=terms.highest_covariance(False),
        covariance_kl=1.0,
        covariance_fraction=2e-4,
    ),
    "chord mix": row("group_std", terms.chord(False), split=True, **CLIP, expert_weight=0.1),
    "chord phi": row("group_std", terms.chord(True), split=True, **CLIP, expert_weight=0.1),
    "raft default": row("positive", terms.reinforce, denominator="kept", reward_threshold=0.0),
    "rloo default": row("rloo", terms.reinforce),
    "reinforce_pp baseline": row("whitened", terms.grpo, **CLIP),
    "reinforce_pp returns": row("whitened_returns", terms.grpo, **CLIP),
    "opo default": row("opo", terms.reinforce),
    "gpg default": row("gpg", terms.reinforce),
    "maxrl default": row("maxrl", terms.reinforce),
    "pass_at_k default": row("pass_at_k", terms.reinforce),
    "dpo default": row("group_mean", None, "sum", response=pairs(dpo), dpo_beta=0.1),
    "ipo default": row("group_mean", None, "sum", response=pairs(ipo), ipo_beta=0.1),
}
ROWS = {tuple(key.split()): entry for key, entry in ROWS.items()}


def std_rows():
    """The algorithms whose variants are three ways to take the std."""
    advantages = {
        "population": ("group_std", 1e-6),
        "sample": ("group_std_sample", 1e-6),
        "batch": ("batch_std", 1e-4),
    }
    for variant, (advantage, epsilon) in advantages.items():
        wide, narrow = CLIP | {"std_epsilon": epsilon}, TINY | {"std_epsilon": epsilon}
        yield ("grpo", variant), row(advantage, terms.grpo, **wide)
        yield ("ppo_dual_clip", variant), row(advantage, terms.dual_clip, **wide, dual_clip=3.0)
        yield ("grpo_two_sided", variant), row(advantage, terms.grpo_two_sided, **wide, delta=1.6)
        yield ("gspo", variant), row(advantage, terms.gspo, "response", **narrow)
        yield ("gspo_token", variant), row(advantage, terms.gspo, "response", **narrow)
        yield ("luspo", variant), row(advantage, terms.gspo, "response_sum", **narrow)


def rec_rows():
    """The REC family, each also with advantages divided by the std."""
    masks = {
        "oneside": (terms.one_side, CLIP),
        "twoside": (terms.two_side, CLIP),
        "ring": (terms.ring, RING),
    }
    for variant, advantage in (("mean", "group_mean"), ("std", "group_std")):
        for name, (mask, ranges) in masks.items():
            for suffix, weight in (("is", terms.importance), ("nois", terms.plain)):
                yield (
                    (f"rec_{name}_{suffix}", variant),
                    row(advantage, terms.rec(mask, weight), **ranges),
                )
        yield (
            ("rec_oneside_tis", variant),
            row(advantage, terms.rec(terms.one_side, terms.truncated), **RING),
        )
        for suffix, weight in (("is", terms.sequence_ratio), ("nois", terms.plain)):
            term = terms.rec(terms.one_side, weight, terms.sequence_ratio)
            yield (
                (f"rec_sequence_{suffix}", variant),
                row(advantage, term, "response", **TINY),
            )


ROWS |= dict(rec_rows()) | dict(std_rows())


def responses_of(name, case, moving, o, advantage):
    """The live responses, each with the log-probs of its own tokens alone."""
    for i in np.flatnonzero(case.groups >= 0):
        where = np.flatnonzero(case.mask[i])
        n = len(where)
        now, fixed, q, p, f = (
            array[i, where] for array in (moving, case.logprobs, case.old, case.prox, case.ref)
        )
        if name == "log_linear_proximal":
            p = q + (1 - 1 / max(case.staleness[i], 1)) * (fixed - q)
        base = q if o.correction == "none" else p
        S, S_moving = sum(fixed - base), sum(now - base)
        s, s_moving = (math.exp(total / n) if n else 1.0 for total in (S, S_moving))
        yield SimpleNamespace(
            i=i, where=where, n=n, group=int(case.groups[i]), A=advantage[i], reward=case.rewards[i], expert=bool(case.expert[i]),
            l=now, fixed=fixed, q=q, p=p, f=f, base=base, rho=np.exp(fixed - base), ratio=np.exp(now - base), S=S, S_moving=S_moving,
            s=s, s_moving=s_moving, W=math.exp(S), D=sum(now - f),
        )  # fmt: skip


def factor(r, o, counted):
    """What a response is multiplied by, given the responses that count."""
    sizes = {
        "token": lambda: max(sum(other.n for other in counted), 1),
        "response": lambda: max(r.n, 1) * len(counted),
        "response_sum": lambda: len(counted),
        "group": lambda: (
            sum(other.group == r.group for other in counted)
            * len({other.group for other in counted})
        ),
        "constant": lambda: len(counted) * o.constant_length,
        "sum": lambda: 1,
    }
    return 1 / sizes[o.aggregation]()


def passes_filter(r, o, b):
    """Whether the policy-gradient term of a response counts."""
    if o.filter == "none" or not r.n:
        return True
    if o.filter == "opsm":
        kept = r.A >= 0 or sum(r.q - r.fixed) / r.n <= o.opsm_delta
    elif o.filter in ("largest_divergence", "divergences"):
        moved = r.fixed - r.q
        kept = max(d * d / 2 for d in moved) <= o.token_divergence
        if o.filter == "divergences":
            kept &= sum(math.exp(d) - 1 - d for d in moved) / r.n <= o.mean_divergence
    else:
        kept = (
            o.sequence_low
            <= math.exp(sum(r.fixed - r.q) / (r.n if o.filter == "geometric" else 1))
            <= o.sequence_high
        )
    return b.seen.note("filter", kept)


def correction_weight(r, t, o, b):
    """The weight of a token for the gap between the sampling and the proximal policy."""
    if o.correction == "none":
        return 1.0
    if o.correction == "tis":
        return b.seen.cap(math.exp(r.p[t] - r.q[t]), o.correction_cap)
    if o.correction == "tis_sequence":
        return b.seen.cap(math.exp(sum(r.p - r.q)), o.correction_cap)
    whole = o.correction == "bounded_sequence"
    weight = math.exp(sum(r.p - r.q) if whole else r.p[t] - r.q[t])
    return weight if o.correction_low <= weight <= o.correction_high else 0.0


def kl_term(r, t, o):
    """Value and derivative of a KL estimate."""
    anchor = r.f[t] if o.kl_reference == "reference" else r.q[t]
    gap = r.l[t] - anchor
    if o.kl_estimator == "k1":
        return gap, 1.0
    if o.kl_estimator == "k2":
        return gap**2 / 2, gap
    value, slope = math.exp(-gap) - 1 + gap, 1 - math.exp(-gap)
    if o.kl_estimator == "k3":
        return value, slope
    ratio = math.exp(r.l[t] - r.q[t])
    return {"k3_is": (ratio * value, ratio * (value + slope))}[o.kl_estimator]


def evaluate(name, variant, case, options=None, dropped=None, moving=None):
    """Advantages [responses], dropped [responses], loss, gradient [responses, time] and branches
    seen, of an algorithm with `options` over its defaults.
    """
    entry = ROWS[name, variant]
    o = SimpleNamespace(**(entry.options | entry.numbers | (options or {})))
    advantage, dropped = advantages(o.advantage, case, o, dropped)
    responses = list(
        responses_of(name, case, case.logprobs if moving is None else moving, o, advantage)
    )
    b = SimpleNamespace(responses=responses, seen=terms.Seen(), state=None)
    if entry.prepare:
        b.state = entry.prepare(o, b)
    loss, gradient = 0.0, np.zeros(case.logprobs.shape)
    counted = [r for r in responses if o.denominator == "all" or not dropped[r.i]]
    for r in counted:
        scale = factor(
            r,
            o,
            [other for other in counted if other.expert == r.expert] if entry.split else counted,
        )
        whole, slope_of_all = entry.response(r, o, b) if entry.response and r.n else (0.0, 0.0)
        loss += scale * whole
        passes = passes_filter(r, o, b)
        for t in range(r.n):
            value, slope = entry.term(r, t, o, b) if entry.term and passes else (0.0, 0.0)
            weight = correction_weight(r, t, o, b)
            value, slope = weight * value, weight * slope + slope_of_all
            if o.kl_coef:
                kl, kl_slope = kl_term(r, t, o)
                value, slope = value + o.kl_coef * kl, slope + o.kl_coef * kl_slope
            loss += scale * value
            gradient[r.i, r.where[t]] += scale * slope
    return SimpleNamespace(
        advantages=advantage, dropped=dropped, loss=loss, gradient=gradient, seen=b.seen
    )
