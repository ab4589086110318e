"""The table of named algorithms: a row names the parts that an algorithm is composed of, and the
hyperparameters that differ from their defaults.

From a name to its gradient: its row here, `algorithms` that makes an objective of it, `composition`
where the parts meet, and the modules of the parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grre_jax.objectives.objective import Mask, Part, Shaping, Weight
from grre_jax.objectives.parts import (
    advantages,
    aggregations,
    masks,
    penalties,
    ratios,
    response_terms,
    terms,
)

Paper = tuple[str, str]

# The letters in the formulas.
NOTATION = (
    "In the formulas l is a token's log-prob, q the stored one of the policy that sampled, p that "
    "at the start of the update, f the reference's; d = l - q, rho = e^d; n the response's "
    "length, S the sum of d over it, s = e^(S/n), W = e^S; A the advantage, r the reward, K the "
    "group's size; e_low, e_high and e are epsilon_low, epsilon_high and std_epsilon, e'_low and "
    "e'_high the outer range; g is the gradient; M(one-side) = 1[A >= 0, rho <= 1 + e_high] or "
    "1[A <= 0, rho >= 1 - e_low]."
)

REC = (
    "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm",
    "https://arxiv.org/abs/2509.24203",
)
TRINITY = ("Trinity-RFT", "https://arxiv.org/abs/2505.17826")
KIMI = ("Kimi k1.5", "https://arxiv.org/abs/2501.12599")
GSPO = ("Group Sequence Policy Optimization", "https://arxiv.org/abs/2507.18071")
DUAL_CLIP = ("Mastering Complex Control in MOBA Games", "https://arxiv.org/abs/1912.09729")
DECOUPLED = ("AReaL", "https://arxiv.org/abs/2505.24298")
DPPO = ("DPPO", "https://arxiv.org/abs/2602.04879")
ENTROPY = (
    "The Entropy Mechanism of RL for Reasoning Language Models",
    "https://arxiv.org/abs/2505.22617",
)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        formula: advantage and loss (or gradient) of a token.
        paper: title and link.
        parts: fields of `Objective` that differ from `BASE`.
        defaults: hyperparameters that differ from their defaults.
        variants: what each value of the option `variant`, the first being the default, changes of
            the parts; a variant's "defaults" are hyperparameters of its own.
        optional: shapings that go first, and join when one of their hyperparameters is given.
    """

    formula: str
    paper: Paper
    parts: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    optional: tuple[Shaping, ...] = ()


BASE: Mapping[str, Part] = {
    "advantage": advantages.group_mean,
    "term": terms.score,
    "level": ratios.token,
    "ratio_reference": ratios.behavior,
    "weight": ratios.one,
    "mask": masks.unmasked,
    "aggregation": aggregations.token,
}


_STD = {
    "mean": {"advantage": advantages.group_mean},
    "std": {"advantage": advantages.group_std},
}  # the REC paper's scripts divide by the std in their wide-range runs
_GRPO = {
    "population": {"advantage": advantages.group_std},
    "sample": {"advantage": advantages.group_std_sample},
    "batch": {"advantage": advantages.batch_std, "defaults": {"std_epsilon": 1e-4}},
}
_STANDARDISED = {"advantage": advantages.group_std}
_BY_RESPONSE = {"aggregation": aggregations.response}
_CLIP = {"term": terms.ppo, "mask": masks.one_side}
_PPO = {**_STANDARDISED, **_CLIP}
_IMPORTANCE = {**_STANDARDISED, "term": terms.importance}
_REC_SEQUENCE = {"level": ratios.sequence, "mask": masks.one_side, **_BY_RESPONSE}
_SEQUENCE = {**_PPO, **_BY_RESPONSE, "level": ratios.sequence}
_OPTIMAL = {"advantage": advantages.optimal_value, "aggregation": aggregations.response_sum}
# The geometric mean of ratios stays near 1: a range of 0.2 would mask nothing in practice.
_NARROW = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}

_TWO_SIDE = "1[1 - e_low <= rho <= 1 + e_high]"
_RING = "two-side or 1[A >= 0, rho <= 1 - e'_low] or 1[A <= 0, rho >= 1 + e'_high]"
_CLIPPED = "-min(rho A, clip(rho, 1 - e_low, 1 + e_high) A)"


def _rec(mask: Mask, weight: Weight) -> Row:
    shown = {
        masks.one_side: "M(one-side)",
        masks.two_side: f"M, M = {_TWO_SIDE}",
        masks.ring: f"M, M = {_RING}",
    }[mask]
    factor = "rho " if weight is ratios.ratio else ""
    return Row(
        f"A = r - mean(r); g = -A {factor}grad l {shown}",
        REC,
        {"mask": mask, "weight": weight},
        variants=_STD,
    )


TABLE: Mapping[str, Row] = {
    "reinforce": Row("A = r - mean(r); g = -A grad l", REC, variants=_STD),
    "rec_oneside_is": _rec(masks.one_side, ratios.ratio),
    "rec_oneside_nois": _rec(masks.one_side, ratios.one),
    "rec_twoside_is": _rec(masks.two_side, ratios.ratio),
    "rec_twoside_nois": _rec(masks.two_side, ratios.one),
    "rec_ring_is": _rec(masks.ring, ratios.ratio),
    "rec_ring_nois": _rec(masks.ring, ratios.one),
    "rec_oneside_tis": Row(
        "g = -A clip(rho, 1 - e'_low, 1 + e'_high) grad l M(one-side)",
        REC,
        {"mask": masks.one_side, "weight": ratios.clipped_to_ring},
        variants=_STD,
    ),
    "rec_sequence_is": Row(
        "g = -A s grad l M(one-side), decided on s",
        REC,
        {**_REC_SEQUENCE, "weight": ratios.ratio},
        _NARROW,
        _STD,
    ),
    "rec_sequence_nois": Row(
        "g = -A grad l M(one-side), decided on s",
        REC,
        _REC_SEQUENCE,
        _NARROW,
        _STD,
    ),
    "opmd": Row(
        "kimi: REINFORCE + (tau / 2) S^2 a response; openkimi: (tau / 2) (A / tau - S)^2 a"
        " response",
        KIMI,
        {"aggregation": aggregations.group},
        {"tau": 0.1},
        {
            "kimi": {"penalties": (penalties.response_square,)},
            "openkimi": {"term": response_terms.squared_consistency, **_BY_RESPONSE},
        },
    ),
    "opmd_token": Row(
        "REINFORCE + coefficient d^2 a token", REC, {"penalties": (penalties.token_square,)}
    ),
    "opmd_minimal": Row(
        "A = r - mean(r); g = -A / (1 + tau) grad l",
        TRINITY,
        {"weight": ratios.inverse_temperature},
    ),
    "opmd_logavgexp": Row(
        "A = r - tau log mean exp(r / tau); g = -A / (1 + tau) grad l",
        TRINITY,
        {"weight": ratios.inverse_temperature},
        variants={
            "mean": {"advantage": advantages.log_mean_exp},
            "leave_one_out": {
                "advantage": advantages.log_mean_exp_leave_one_out,
                # The default of Trinity-RFT for this baseline.
                "defaults": {"tau": 0.01},
            },
        },
    ),
    "asymre": Row(
        "A = r - (mean(r) - beta); g = -A grad l",
        (
            "Asymmetric REINFORCE for off-Policy Reinforcement Learning",
            "https://arxiv.org/abs/2506.20520",
        ),
        {"advantage": advantages.asymre},
    ),
    "red_drop": Row(
        "drop extra negatives (r < mean(r)) at random; A = r - mean(kept r); g = -A grad l",
        REC,
        {"advantage": advantages.red_drop},
    ),
    "red_weight": Row(
        "A = r - mean(r); g = -A exp(A / tau) grad l", REC, {"weight": ratios.exponential}
    ),
    # Clipped objectives.
    "grpo": Row(
        f"A = (r - mean(r)) / (std(r) + e); {_CLIPPED}",
        ("DeepSeekMath", "https://arxiv.org/abs/2402.03300"),
        _PPO,
        variants=_GRPO,
    ),
    "gdpo": Row(
        f"A = sum over the reward's components of (c - mean(c)) / (std(c) + e), standardised over"
        f" the batch's responses (token: tokens); {_CLIPPED}",
        ("GDPO", "https://arxiv.org/abs/2601.05242"),
        _CLIP,
        variants={
            # The std_epsilon of the authors' TRL.
            "response": {
                "advantage": advantages.decoupled,
                "defaults": {"std_epsilon": 1e-4},
            },
            "token": {"advantage": advantages.decoupled_whitened},
        },
    ),
    "dr_grpo": Row(
        f"A = r - mean(r); {_CLIPPED}, over a constant length",
        ("Understanding R1-Zero-Like Training", "https://arxiv.org/abs/2503.20783"),
        {**_CLIP, "aggregation": aggregations.constant},
    ),
    "dapo": Row(
        f"{_CLIPPED}, on groups with signal alone; with max_length: r += min(-(n - max_length +"
        " overlong_buffer) / overlong_buffer, 0)",
        ("DAPO", "https://arxiv.org/abs/2503.14476"),
        # DAPO samples anew in place of the groups that it drops, so that these do not count.
        {**_PPO, "shaping": (advantages.zero_variance,), "denominator": "kept"},
        {"epsilon_high": 0.28},
        optional=(advantages.overlong,),
    ),
    "ppo_dual_clip": Row(
        f"{_CLIPPED}, at most -dual_clip A where A < 0",
        DUAL_CLIP,
        {**_PPO, "term": terms.dual_clipped},
        variants=_GRPO,
    ),
    "grpo_two_sided": Row(
        "-min(min(rho, delta) A, clip(rho) A): ppo_dual_clip, with delta for dual_clip",
        ("TRL", "https://huggingface.co/docs/trl/grpo_trainer"),
        {**_PPO, "term": terms.two_sided},
        variants=_GRPO,
    ),
    "gspo": Row("-min(s A, clip(s) A)", GSPO, _SEQUENCE, _NARROW, _GRPO),
    "gspo_token": Row(
        "the same with s e^(l - sg l) for s; differs from gspo where tokens of a response are"
        " corrected differently",
        GSPO,
        {**_SEQUENCE, "term": terms.ppo_token},
        _NARROW,
        _GRPO,
    ),
    "luspo": Row(
        "n times gspo: its setting aggregation=response_sum",
        ("LUSPO", "https://arxiv.org/abs/2602.05261"),
        {**_SEQUENCE, "aggregation": aggregations.response_sum},
        _NARROW,
        _GRPO,
    ),
    "gepo": Row(
        "-min(v A, clip(v) A), v = P_i / (sum Q^2 / sum Q), P and Q geometric-mean probabilities",
        ("Group Expectation Policy Optimization", "https://arxiv.org/abs/2508.17850"),
        {**_PPO, "level": ratios.group_expectation, **_BY_RESPONSE},
    ),
    "gmpo": Row(
        "-A exp(mean of sgn(A) min(sgn(A) d, sgn(A) clip(d, -log_e_low, log_e_high)))",
        ("Geometric-Mean Policy Optimization", "https://arxiv.org/abs/2507.20673"),
        {**_STANDARDISED, "term": terms.geometric_mean, **_BY_RESPONSE},
    ),
    "sapo": Row(
        "-A (4 / tau) sigmoid(tau (rho - 1)), tau by the sign of A; the gate is differentiated",
        ("Soft Adaptive Policy Optimization", "https://arxiv.org/abs/2511.20347"),
        {**_STANDARDISED, "term": terms.soft_gate, **_BY_RESPONSE},
    ),
    "bapo": Row(
        "clipped at bounds of rho raised until positive contributions balance negative ones, over"
        " the batch",
        ("BAPO", "https://arxiv.org/abs/2510.18927"),
        {**_STANDARDISED, "term": terms.balanced},
    ),
    "m2po": Row(
        "-A rho M; M drops the largest d^2 of the trust region until its mean is at most"
        " m2_threshold, over the batch",
        ("Prosperity before Collapse (M2PO)", "https://arxiv.org/abs/2510.01161"),
        {**_IMPORTANCE, "mask": masks.second_moment},
    ),
    "grpo_veto": Row(
        "-A rho M(one-side); where A < 0, 0 behind the response's first token with rho outside"
        " [veto_low, veto_high]",
        ("How Off-Policy Can GRPO Be? (mu-GRPO)", "https://arxiv.org/abs/2605.17570"),
        {**_IMPORTANCE, "mask": masks.veto},
        {"epsilon_low": 0.6, "epsilon_high": 2.0},
    ),
    "clip_cov": Row(
        f"{_CLIPPED}, without the tokens of highest covariance of A and l",
        ENTROPY,
        {**_PPO, "term": terms.covariance_clipped},
    ),
    "kl_cov": Row(
        "-A rho + covariance_kl |d| on the tokens of highest covariance of A and l",
        ENTROPY,
        {**_STANDARDISED, "term": terms.covariance_penalized},
    ),
    # Weights of the gradient.
    "cispo": Row(
        "g = -A clip(rho, clip_low, clip_high) grad l; epsilon: clip(rho, 1 - e_low, 1 + e_high)",
        ("MiniMax-M1 (CISPO)", "https://arxiv.org/abs/2506.13585"),
        {**_STANDARDISED},
        variants={
            "absolute": {"weight": ratios.clipped},
            "epsilon": {
                "weight": ratios.clipped_around_one,
                # With epsilon_low = 1 there is no lower bound.
                "defaults": {"epsilon_low": 1.0, "epsilon_high": 0.28},
            },
        },
    ),
    "truncated_is": Row(
        "g = -A clip(rho, 0, 1) grad l: cispo with clip_high=1 and A = r - mean(r)",
        REC,
        {"weight": ratios.clipped},
        {"clip_high": 1.0},
    ),
    "topr": Row(
        "A = 1 if r > threshold else -1; g = -A grad l where A > 0, else -A clip(W, 0, 1) grad l"
        " (token: rho, normalized: s)",
        ("Tapered Off-Policy REINFORCE", "https://arxiv.org/abs/2503.14286"),
        {"advantage": advantages.sign, "weight": ratios.tapered, **_BY_RESPONSE},
        variants={
            "sequence": {"level": ratios.sequence_sum},
            "token": {"level": ratios.token},
            "normalized": {"level": ratios.sequence},
        },
    ),
    "dppo_tv": Row(
        "g = -A min(rho, ratio_cap) grad l where the token's probability moved at most divergence"
        " the way of A",
        DPPO,
        {**_STANDARDISED, "mask": masks.total_variation, "weight": ratios.capped},
    ),
    "dppo_kl": Row(
        "the same with the KL of the choice between the token and all others",
        DPPO,
        {**_STANDARDISED, "mask": masks.binary_kl, "weight": ratios.capped},
    ),
    "vespo": Row(
        "g = -A phi(W) grad l, log phi = lambda + k log W - lambda W, k and lambda by the sign"
        " of A",
        ("VESPO", "https://arxiv.org/abs/2602.10693"),
        {**_STANDARDISED, "level": ratios.sequence_sum, "weight": ratios.gamma},
    ),
    "r2vpo": Row(
        "-A rho + variance_coef (rho - 1)^2",
        ("Ratio-Variance Regularized Policy Optimization", "https://arxiv.org/abs/2601.03320"),
        {**_IMPORTANCE, "penalties": (ratios.ratio_variance,)},
    ),
    "aspo": Row(
        "g = -A min(1 / rho, cap) grad l where A > 0, else -A min(rho, cap) grad l; M(one-side)",
        ("ASPO", "https://arxiv.org/abs/2510.06062"),
        {**_STANDARDISED, "mask": masks.one_side, "weight": ratios.reciprocal},
    ),
    # Corrections and filters.
    "decoupled_ppo": Row(
        "grpo with ratio e^(l-p), times e^(p-q), dropped above correction_high: its setting"
        " correction=bounded",
        DECOUPLED,
        {**_PPO, "ratio_reference": ratios.proximal, "correction": ratios.bounded},
    ),
    "log_linear_proximal": Row(
        "decoupled_ppo with p = q + (1 - 1 / staleness) (sg l - q)",
        ("A-3PO", "https://arxiv.org/abs/2512.06547"),
        {**_PPO, "ratio_reference": ratios.log_linear, "correction": ratios.bounded},
    ),
    "tis": Row(
        "grpo with ratio e^(l-p), times min(e^(p-q), correction_cap): its setting correction=tis"
        " (sequence: tis_sequence)",
        (
            "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
            "https://fengyao.notion.site/off-policy-rl",
        ),
        {**_PPO, "ratio_reference": ratios.proximal},
        variants={
            "token": {"correction": ratios.tis},
            "sequence": {"correction": ratios.tis_sequence},
        },
    ),
    "icepop": Row(
        "grpo with ratio e^(l-p), times e^(p-q) where it lies in [.5, 5], else 0: its setting"
        " correction=bounded",
        ("Every Step Evolves (IcePop)", "https://arxiv.org/abs/2510.18855"),
        {**_PPO, "ratio_reference": ratios.proximal, "correction": ratios.bounded},
        {"correction_low": 0.5},
    ),
    "sequence_mask": Row(
        "grpo on responses whose s (product: W) lies in [sequence_low, sequence_high]: its setting"
        " filter=geometric (product)",
        (
            "When Speed Kills Stability",
            "https://verl.readthedocs.io/en/latest/algo/rollout_corr.html",
        ),
        _PPO,
        variants={
            "geometric": {"filter": masks.geometric},
            "product": {
                "filter": masks.product,
                "defaults": {"sequence_low": 0.5, "sequence_high": 2.0},
            },
        },
    ),
    "opsm": Row(
        "grpo on responses with A >= 0 or mean(q - l) <= opsm_delta: its setting filter=opsm",
        ("DeepSeek-V3.2", "https://arxiv.org/abs/2512.02556"),
        {**_PPO, "filter": masks.opsm},
    ),
    "trm": Row(
        "-A rho on responses without a token of d^2 / 2 > token_divergence (both: and with mean(rho"
        " - 1 - d) <= mean_divergence)",
        ("Trust Region Masking", "https://arxiv.org/abs/2512.23075"),
        {**_IMPORTANCE, "aggregation": aggregations.response_sum},
        variants={
            "max": {"filter": masks.largest_divergence},
            "both": {"filter": masks.divergences, "defaults": {"token_divergence": 0.1}},
        },
    ),
    # Regressions, preferences and imitation.
    "dro": Row(
        "-A l + (dro_beta / 2) d^2: opmd_token with coefficient = dro_beta / 2",
        ("Offline Regularised RL for LLM Alignment", "https://arxiv.org/abs/2405.19107"),
        {"penalties": (penalties.half_token_square,)},
    ),
    "gvpo": Row(
        "1/2 [beta (S - mean S) - A]^2 / (K - 1), summed over a group",
        ("Group Variance Policy Optimization", "https://arxiv.org/abs/2504.19599"),
        {"term": response_terms.variance, "aggregation": aggregations.group},
    ),
    "astar_po": Row(
        "(beta_2 sum(l - f) + V* - r)^2, V* = beta_1 log mean exp(r / beta_1)",
        ("A*-PO", "https://arxiv.org/abs/2505.20686"),
        {**_OPTIMAL, "term": response_terms.optimal_value_regression},
    ),
    "oapl": Row(
        "(beta_2 S + V* - r)^2, V* = beta_1 log mean exp(r / beta_1): astar_po to the policy that"
        " sampled",
        ("LLMs Can Learn to Reason Via Off-Policy RL", "https://arxiv.org/abs/2602.19362"),
        {**_OPTIMAL, "term": response_terms.behavior_regression},
        {"beta_1": 1.0},
    ),
    "chord": Row(
        "(1 - w) grpo on own responses + w SFT on an expert's, each over its own count; phi: SFT"
        " weight p (1 - p)",
        ("CHORD", "https://arxiv.org/abs/2508.11408"),
        {**_PPO, "term": terms.expert_mix},
        variants={"mix": {}, "phi": {"term": terms.expert_mix_phi}},
    ),
    "raft": Row(
        "SFT on responses with r > threshold",
        ("RAFT", "https://arxiv.org/abs/2304.06767"),
        # A mean over the tokens that are imitated.
        {"advantage": advantages.positives, "denominator": "kept"},
    ),
    "distill": Row(
        "g = (l - f) grad l, f the teacher's log-probs (stored: rho (l - f) grad l): the reverse KL"
        " to the reference, rewards unread",
        ("On-Policy Distillation", "https://thinkingmachines.ai/blog/on-policy-distillation"),
        {"advantage": advantages.nothing, "term": terms.reverse_kl},
        variants={"own": {}, "stored": {"weight": ratios.ratio}},
    ),
    "dpo": Row(
        "-log sigmoid(beta (D_i - D_j)), D = sum(l - f), mean over pairs of a group with r_i > r_j",
        ("Direct Preference Optimization", "https://arxiv.org/abs/2305.18290"),
        # The term is a mean over pairs already.
        {"term": response_terms.direct_preference, "aggregation": aggregations.plain_sum},
    ),
    "ipo": Row(
        "(D_i - D_j - 1 / (2 beta))^2, mean over pairs of a group with r_i > r_j",
        ("A General Theoretical Paradigm (IPO)", "https://arxiv.org/abs/2310.12036"),
        {"term": response_terms.identity_preference, "aggregation": aggregations.plain_sum},
    ),
    # Baselines.
    "rloo": Row(
        "A = K / (K - 1) (r - mean(r)); g = -A grad l",
        ("Back to Basics (RLOO)", "https://arxiv.org/abs/2402.14740"),
        {"advantage": advantages.rloo},
    ),
    "reinforce_pp": Row(
        f"A = r - mean(r) (returns: r), whitened over the batch's tokens; {_CLIPPED}",
        ("REINFORCE++", "https://arxiv.org/abs/2501.03262"),
        _CLIP,
        variants={
            "baseline": {"advantage": advantages.whitened},
            "returns": {"advantage": advantages.whitened_returns},
        },
    ),
    "opo": Row(
        "A = r - sum(n r) / sum(n); g = -A grad l",
        ("OPO", "https://arxiv.org/abs/2505.23585"),
        {"advantage": advantages.opo},
    ),
    "gpg": Row(
        "A = (responses / non-zero rewards) (r - mean(r)); g = -A grad l",
        ("GPG", "https://arxiv.org/abs/2504.02546"),
        {"advantage": advantages.gpg},
    ),
    "maxrl": Row(
        "A = (r - mean(r)) / mean(r), 0 where the mean is 0; g = -A grad l",
        ("MaxRL", "https://arxiv.org/abs/2602.02710"),
        {"advantage": advantages.maxrl},
    ),
    "pass_at_k": Row(
        "A = (r_max - r_second) / (std(r) + e) for the best, else 0; g = -A grad l",
        (
            "Optimizing Language Models for Inference Time Objectives",
            "https://arxiv.org/abs/2503.19595",
        ),
        {"advantage": advantages.pass_at_k},
    ),
}
