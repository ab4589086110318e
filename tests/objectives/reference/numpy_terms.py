"""The loss terms of every algorithm in NumPy, written from their formulas.

A token term is given a response r, the options o and the batch b that numpy_reference makes, and
gives the loss of each token of the response; a response term gives one number. Whatever a formula
holds constant is formed from `r.fixed`, the rest from `r.l`, which may be complex: numbers are then
compared by their real parts.
"""

from types import SimpleNamespace

import numpy as np

# What every algorithm has unless its row or the caller says otherwise.
OPTIONS = {
    "singleton_baseline": "mean",
    "denominator": "all",
    "correction": "none",
    "filter": "none",
    "kl_coef": 0,
    "kl_estimator": "k3",
    "kl_reference": "reference",
    "drop_equal": False,
}


# ---- token terms


def weighted(r, weight):
    """Its gradient is -A weight grad l."""
    return -weight * r.A * r.l


def ppo(ratio, r, low, high):
    return -np.minimum(ratio * r.A, np.clip(ratio, low, high) * r.A)


def around_one(o):
    return 1 - o.epsilon_low, 1 + o.epsilon_high


def one_side(x, advantage, o):
    low, high = around_one(o)
    return (advantage >= 0) & (x <= high) | (advantage <= 0) & (x >= low)


def two_side(x, advantage, o):
    low, high = around_one(o)
    return (low <= x) & (x <= high)


def outer(x, advantage, o):
    near = x <= 1 - o.epsilon_low_prime
    far = x >= 1 + o.epsilon_high_prime
    return (advantage >= 0) & near | (advantage <= 0) & far


def ring(x, advantage, o):
    return two_side(x, advantage, o) | outer(x, advantage, o)


def rec(mask, weight, level="rho"):
    def term(r, o, b):
        return weighted(r, weight(r, o, b) * mask(getattr(r, level), r.A, o))

    return term


def reinforce(r, o, b):
    return weighted(r, 1.0)


def plain(r, o, b):
    return 1.0


def importance(r, o, b):
    return r.rho


def truncated(r, o, b):
    return np.clip(r.rho, 1 - o.epsilon_low_prime, 1 + o.epsilon_high_prime)


def aspo_weight(r, o, b):
    return np.minimum(1 / r.rho if r.A > 0 else r.rho, o.weight_cap)


def grpo(r, o, b):
    return ppo(r.ratio, r, *around_one(o))


def dual_clip(r, o, b):
    value = grpo(r, o, b)
    return np.minimum(value, -o.dual_clip * r.A) if r.A < 0 else value


def grpo_two_sided(r, o, b):
    return ppo(np.minimum(r.ratio, o.delta), r, *around_one(o))


def gspo(r, o, b):
    return ppo(r.s_moving, r, *around_one(o))


def cispo_absolute(r, o, b):
    return weighted(r, np.clip(r.rho, o.clip_low, o.clip_high))


def gmpo(r, o, b):
    sign = np.sign(r.A)
    moved = sign * (r.l - r.base)
    limited = sign * np.clip(r.l - r.base, -o.log_epsilon_low, o.log_epsilon_high)
    return -r.A * np.exp(sign * np.minimum(moved, limited).mean())


def sapo(r, o, b):
    tau = o.tau_positive if r.A > 0 else o.tau_negative
    return -r.A * 4 / tau / (1 + np.exp(-tau * (r.ratio - 1)))


def topr(level):
    def term(r, o, b):
        return weighted(r, 1.0 if r.A > 0 else np.minimum(getattr(r, level), 1.0))

    return term


def damped(r, o, b):
    return weighted(r, 1 / (1 + o.tau))


def with_square(r, coefficient):
    """REINFORCE and a penalty on the square of the log-ratio."""
    return weighted(r, 1.0) + coefficient * (r.l - r.base) ** 2


def chosen(r, b):
    return np.array([(r.i, t) in b.state for t in range(r.n)])


def ratio_itself(r, o, b):
    return -r.A * r.ratio


def grpo_veto(r, o, b):
    outside = (r.rho < o.veto_low) | (r.rho > o.veto_high)
    vetoed = (r.A < 0) & (np.cumsum(outside) > outside)
    return ratio_itself(r, o, b) * (one_side(r.rho, r.A, o) & ~vetoed)


def distill(weight):
    def term(r, o, b):
        return (r.fixed - r.f) * weight(r, o, b) * (1 + r.l - r.fixed)

    return term


def dppo(r, o, passes):
    return weighted(r, np.minimum(r.rho, o.ratio_cap) * passes)


def dppo_tv(r, o, b):
    moved = np.exp(r.fixed) - np.exp(r.base)
    return dppo(r, o, moved <= o.divergence_high if r.A > 0 else moved >= -o.divergence_low)


def dppo_kl(r, o, b):
    new, old = np.exp(r.fixed), np.exp(r.base)
    kl = old * np.log(old / new) + (1 - old) * np.log((1 - old + 1e-8) / (1 - new + 1e-8))
    if r.A > 0:
        return dppo(r, o, (kl <= o.divergence_high) | (new <= old))
    return dppo(r, o, (kl <= o.divergence_low) | (new >= old))


def vespo(r, o, b):
    rewarded = r.A >= 0
    k, lam = (o.k_positive, o.lambda_positive) if rewarded else (o.k_negative, o.lambda_negative)
    return weighted(r, np.exp(lam + k * np.log(r.W) - lam * r.W))


def kl_cov(r, o, b):
    moved = r.l - r.base
    return ratio_itself(r, o, b) + o.covariance_kl * np.maximum(moved, -moved) * chosen(r, b)


def chord(phi):
    def term(r, o, b):
        if not r.expert:
            return (1 - o.expert_weight) * grpo(r, o, b)
        p = np.exp(r.fixed)
        return -o.expert_weight * (p * (1 - p) if phi else 1.0) * r.l

    return term


# ---- response terms


def openkimi(r, o, b):
    return o.tau / 2 * (r.A / o.tau - r.S_moving) ** 2


def gvpo(r, o, b):
    sums = [other.S for other in b.responses if other.group == r.group]
    gap = o.gvpo_beta * (r.S_moving - np.mean(sums)) - r.A
    return gap**2 / 2 * len(sums) / (len(sums) - 1) if len(sums) > 1 else 0.0


def pairs(loss):
    """The mean of a loss of D_i - D_j over the pairs with r_i > r_j and tokens."""

    def term(r, o, b):
        some = [each for each in b.responses if each.n]
        pairs = [(i, j) for i in some for j in some if i.group == j.group and i.reward > j.reward]
        return sum(loss(i.D - j.D, o) for i, j in pairs if i is r) / max(len(pairs), 1)

    return term


# ---- what is decided over the whole batch


def tokens_of(b):
    return [(r, t) for r in b.responses for t in range(r.n)]


def m2po_dropped(o, b):
    kept = sorted(
        (np.log(r.rho[t]) ** 2, r.i, t)
        for r, t in tokens_of(b)
        if (r.A > 0 and r.rho[t] > 1) or (r.A < 0 and r.rho[t] < 1)
    )
    dropped = set()
    while kept and np.mean([square for square, _, _ in kept]) > o.m2_threshold:
        dropped.add(kept.pop()[1:])
    return dropped


def bapo_bounds(o, b):
    low, high = o.ratio_low_start, o.ratio_high_start

    def unbalanced():
        gain = sum(r.A * np.minimum(r.rho, high).sum() for r in b.responses if r.A >= 0)
        loss = sum(-r.A * np.maximum(r.rho, low).sum() for r in b.responses if r.A < 0)
        return loss > 0 and gain / loss < o.balance_target

    while low < o.ratio_low_end and unbalanced():
        low = min(low + o.ratio_step, o.ratio_low_end)
    while high < o.ratio_high_end and unbalanced():
        high = min(high + o.ratio_step, o.ratio_high_end)
    return low, high


def gepo_expected(o, b):
    """Of each group; a response without tokens has no mean and is left out."""
    expected = {}
    for group in {r.group for r in b.responses if r.n}:
        means = [np.exp(r.base.mean()) for r in b.responses if r.group == group and r.n]
        expected[group] = np.square(means).sum() / np.sum(means)
    return expected


def highest_covariance(skip_clipped):
    def chosen(o, b):
        tokens = tokens_of(b)
        mean_advantage = sum(r.A for r, _ in tokens) / len(tokens)
        mean_logprob = sum(r.fixed[t] for r, t in tokens) / len(tokens)
        covariances = {
            (r.i, t): (r.A - mean_advantage) * (r.fixed[t] - mean_logprob)
            for r, t in tokens
            if not skip_clipped or one_side(r.rho[t], r.A, o)
        }
        count = max(1, int(o.covariance_fraction * len(tokens)))
        ordered = sorted(covariances.values(), reverse=True)
        first_out = ordered[count] if count < len(ordered) else -np.inf
        # Where all that stand highest are tied, all of them.
        tied = ordered[0] == first_out > 0
        return {
            place
            for place, value in covariances.items()
            if value > first_out or (tied and value == first_out)
        }

    return chosen


# ---- the algorithms

STANDARDISED = ("group_std", "group_std_sample", "decoupled_whitened", "pass_at_k")
CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.2}
RING = {**CLIP, "epsilon_low_prime": 0.6, "epsilon_high_prime": 2.0}
TINY = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
DPPO = {"divergence_low": 0.2, "divergence_high": 0.2, "ratio_cap": 3.0}
VESPO = {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0}
BAPO = {
    "ratio_low_start": 0.6,
    "ratio_low_end": 0.8,
    "ratio_high_start": 1.2,
    "ratio_high_end": 2.0,
    "ratio_step": 0.05,
    "balance_target": 1.0,
}


def row(
    advantage, term=None, aggregation="token", *, response=None, prepare=None, split=False, **given
):
    """One algorithm: default advantage, token term, aggregation, response term, what it decides
    over the batch, whether experts are counted apart, and options and numbers.
    """
    options = OPTIONS | {"advantage": advantage, "aggregation": aggregation}
    options |= {"std_epsilon": 1e-6} if advantage in STANDARDISED else {}
    return SimpleNamespace(
        term=term, options=options | given, response=response, prepare=prepare, split=split
    )


def clipped(**given):
    """GRPO, with other options and numbers."""
    return row("group_std", grpo, **CLIP, **given)


def bounded(low):
    return clipped(correction="bounded", correction_low=low, correction_high=5.0)


def covariance(term, skip_clipped, **numbers):
    prepare = highest_covariance(skip_clipped)
    return row("group_std", term, prepare=prepare, covariance_fraction=2e-4, **numbers)


# By name and variant; the first variant of an algorithm is its default.
ROWS = {
    # These have the advantage of their name.
    **{
        f"{name} default": row(name, reinforce)
        for name in ("red_drop", "rloo", "opo", "gpg", "maxrl", "pass_at_k")
    },
    **{
        f"topr {name}": row("sign", topr(level), "response", reward_threshold=0.0)
        for name, level in (("sequence", "W"), ("token", "rho"), ("normalized", "s"))
    },
    "reinforce mean": row("group_mean", reinforce),
    "reinforce std": row("group_std", reinforce),
    "dr_grpo default": row("group_mean", grpo, "constant", **CLIP, constant_length=10.0),
    "gdpo response": row("decoupled", grpo, **CLIP, std_epsilon=1e-4),
    "gdpo token": row("decoupled_whitened", grpo, **CLIP),
    "dapo default": row(
        "group_std",
        grpo,
        denominator="kept",
        drop_equal=True,
        epsilon_low=0.2,
        epsilon_high=0.28,
    ),
    "cispo absolute": row("group_std", cispo_absolute, clip_low=0.0, clip_high=5.0),
    "cispo epsilon": row(
        "group_std",
        lambda r, o, b: weighted(r, np.clip(r.rho, *around_one(o))),
        epsilon_low=1.0,
        epsilon_high=0.28,
    ),
    "gmpo default": row("group_std", gmpo, "response", log_epsilon_low=0.4, log_epsilon_high=0.4),
    "sapo default": row("group_std", sapo, "response", tau_positive=1.0, tau_negative=1.05),
    "truncated_is default": row("group_mean", cispo_absolute, clip_low=0.0, clip_high=1.0),
    "opmd kimi": row(
        "group_mean",
        reinforce,
        "group",
        response=lambda r, o, b: o.tau / 2 * r.S_moving**2,
        tau=0.1,
    ),
    "opmd openkimi": row("group_mean", None, "response", response=openkimi, tau=0.1),
    "opmd_minimal default": row("group_mean", damped, tau=1.0),
    "opmd_token default": row(
        "group_mean", lambda r, o, b: with_square(r, o.coefficient), coefficient=0.1
    ),
    "opmd_logavgexp mean": row("log_mean_exp", damped, tau=1.0),
    "opmd_logavgexp leave_one_out": row("log_mean_exp_leave_one_out", damped, tau=0.01),
    "asymre default": row("asymre", reinforce, beta=0.1),
    "red_weight default": row(
        "group_mean", lambda r, o, b: weighted(r, np.exp(r.A / o.tau)), tau=1.0
    ),
    "decoupled_ppo default": bounded(0.0),
    "log_linear_proximal default": bounded(0.0),
    "icepop default": bounded(0.5),
    "tis token": clipped(correction="tis", correction_cap=2.0),
    "tis sequence": clipped(correction="tis_sequence", correction_cap=2.0),
    "sequence_mask geometric": clipped(filter="geometric", sequence_low=0.999, sequence_high=1.001),
    "sequence_mask product": clipped(filter="product", sequence_low=0.5, sequence_high=2.0),
    "opsm default": clipped(filter="opsm", opsm_delta=0.1),
    "m2po default": row(
        "group_std",
        lambda r, o, b: ratio_itself(r, o, b) * ~chosen(r, b),
        prepare=m2po_dropped,
        m2_threshold=0.04,
    ),
    "dppo_tv default": row("group_std", dppo_tv, **DPPO),
    "dppo_kl default": row("group_std", dppo_kl, **DPPO),
    "vespo default": row("group_std", vespo, **VESPO),
    "bapo default": row(
        "group_std",
        lambda r, o, b: ppo(r.ratio, r, *b.state),
        prepare=bapo_bounds,
        **BAPO,
    ),
    "aspo default": row("group_std", rec(one_side, aspo_weight), **CLIP, weight_cap=3.0),
    "gepo default": row(
        "group_std",
        lambda r, o, b: ppo(np.exp(r.l.mean()) / b.state[r.group], r, *around_one(o)),
        "response",
        prepare=gepo_expected,
        **CLIP,
    ),
    "dro default": row("group_mean", lambda r, o, b: with_square(r, o.dro_beta / 2), dro_beta=0.3),
    "gvpo default": row("group_mean", None, "group", response=gvpo, gvpo_beta=0.2),
    "astar_po default": row(
        "optimal_value",
        None,
        "response_sum",
        response=lambda r, o, b: (o.beta_2 * r.D - r.A) ** 2,
        beta_1=0.5,
        beta_2=1e-3,
    ),
    "oapl default": row(
        "optimal_value",
        None,
        "response_sum",
        response=lambda r, o, b: (o.beta_2 * r.S_moving - r.A) ** 2,
        beta_1=1.0,
        beta_2=1e-3,
    ),
    "trm max": row(
        "group_std",
        ratio_itself,
        "response_sum",
        filter="largest_divergence",
        token_divergence=0.05,
    ),
    "trm both": row(
        "group_std",
        ratio_itself,
        "response_sum",
        filter="divergences",
        token_divergence=0.1,
        mean_divergence=0.002,
    ),
    "grpo_veto default": row(
        "group_std", grpo_veto, epsilon_low=0.6, epsilon_high=2.0, veto_low=0.7, veto_high=1.5
    ),
    "r2vpo default": row(
        "group_std",
        lambda r, o, b: ratio_itself(r, o, b) + o.variance_coef * (r.ratio - 1) ** 2,
        variance_coef=0.3,
    ),
    "distill own": row("none", distill(plain)),
    "distill stored": row("none", distill(importance)),
    "clip_cov default": covariance(lambda r, o, b: grpo(r, o, b) * ~chosen(r, b), True, **CLIP),
    "kl_cov default": covariance(kl_cov, False, covariance_kl=1.0),
    "chord mix": row("group_std", chord(False), split=True, **CLIP, expert_weight=0.1),
    "chord phi": row("group_std", chord(True), split=True, **CLIP, expert_weight=0.1),
    "raft default": row("positive", reinforce, denominator="kept", reward_threshold=0.0),
    "reinforce_pp baseline": row("whitened", grpo, **CLIP),
    "reinforce_pp returns": row("whitened_returns", grpo, **CLIP),
    "dpo default": row(
        "group_mean",
        None,
        "sum",
        response=pairs(lambda x, o: np.log(1 + np.exp(-o.dpo_beta * x))),
        dpo_beta=0.1,
    ),
    "ipo default": row(
        "group_mean",
        None,
        "sum",
        response=pairs(lambda x, o: (x - 1 / (2 * o.ipo_beta)) ** 2),
        ipo_beta=0.1,
    ),
}

# The algorithms whose variants are three ways to take the std.
for variant, advantage, epsilon in (
    ("population", "group_std", 1e-6),
    ("sample", "group_std_sample", 1e-6),
    ("batch", "batch_std", 1e-4),
):
    wide = CLIP | {"std_epsilon": epsilon}
    narrow = TINY | {"std_epsilon": epsilon}
    ROWS |= {
        f"grpo {variant}": row(advantage, grpo, **wide),
        f"ppo_dual_clip {variant}": row(advantage, dual_clip, **wide, dual_clip=3.0),
        f"grpo_two_sided {variant}": row(advantage, grpo_two_sided, **wide, delta=1.6),
        f"gspo {variant}": row(advantage, gspo, "response", **narrow),
        f"gspo_token {variant}": row(advantage, gspo, "response", **narrow),
        f"luspo {variant}": row(advantage, gspo, "response_sum", **narrow),
    }

# The REC family, each also with advantages divided by the std.
for variant, advantage in (("mean", "group_mean"), ("std", "group_std")):
    for suffix, weight in (("is", importance), ("nois", plain)):
        for name, mask, ranges in (
            ("oneside", one_side, CLIP),
            ("twoside", two_side, CLIP),
            ("ring", ring, RING),
        ):
            ROWS[f"rec_{name}_{suffix} {variant}"] = row(advantage, rec(mask, weight), **ranges)
    ROWS |= {
        f"rec_oneside_tis {variant}": row(advantage, rec(one_side, truncated), **RING),
        f"rec_sequence_is {variant}": row(
            advantage, rec(one_side, lambda r, o, b: r.s, "s"), "response", **TINY
        ),
        f"rec_sequence_nois {variant}": row(
            advantage, rec(one_side, plain, "s"), "response", **TINY
        ),
    }
ROWS = {tuple(key.split()): entry for key, entry in ROWS.items()}
