"""REP: additive regularisers of plain REINFORCE, and the usual KL penalties.

A penalty is a per-token or a per-response term that `policy_loss` adds before it aggregates. Where
a term's gradient is not that of its value as written (a bound acts), `with_derivative` states both,
so that nothing is hidden in a stop-gradient.
"""

import jax
import jax.numpy as jnp

from grre_jax.objectives.inputs import LossInputs, Responses, Scalar, Tokens, with_derivative
from grre_jax.objectives.part import Penalty, non_negative, penalty, positive
from grre_jax.objectives.parts.advantages import TAU
from grre_jax.objectives.parts.ratios import limit_log_ratio


def squared_log_ratio(logprobs: Tokens, old_logprobs: Tokens, coefficient: Scalar) -> Tokens:
    """Computes c (l - l_old)^2 per token: OPMD per token, as the experiments of
    https://arxiv.org/abs/2509.24203 (the usual 1/2 is absorbed in c).

    Args:
        logprobs: [tokens] l under the policy.
        old_logprobs: [tokens] l_old, data.
        coefficient: c, at least 0.

    Returns:
        [tokens] the penalty.
    """
    return coefficient * (logprobs - jax.lax.stop_gradient(old_logprobs)) ** 2


def squared_response_log_ratio(log_ratio_sums: Responses, tau: Scalar) -> Responses:
    """Computes (tau / 2) (l_i - l_old,i)^2 per response, with l_i the sum over its tokens: OPMD of
    Kimi k1.5 (https://arxiv.org/abs/2501.12599).

    Args:
        log_ratio_sums: [responses] S_i, the sum of l - l_old over a response's tokens (0 for a
            response with none here).
        tau: the temperature of the surrogate it derives from, positive, in units of reward.

    Returns:
        [responses] the penalty.
    """
    return tau / 2 * log_ratio_sums**2


def kl_penalty(
    logprobs: Tokens, reference_logprobs: Tokens, estimator: str, old_logprobs: Tokens | None = None
) -> Tokens:
    """Estimates KL(policy || reference) by one of Schulman's estimators, one value per token
    (http://joschu.net/blog/kl-approx.html).

    With x = log reference - log policy: k1 = -x; k2 = x^2 / 2; k3 = e^x - 1 - x. As losses, k1 has
    no gradient on-policy in expectation, k2 has that of the reverse KL, and k3 a forward-KL-like
    one.
    k3_is is rho k3, with rho the ratio to the policy that sampled and the gradient through both:
    unbiased on that policy's tokens, value and gradient (DeepSeek-V3.2). The e^x of k3 and rho are
    bounded by `ratios.LOG_RATIO_LIMIT`.

    Args:
        logprobs: [tokens] log policy.
        reference_logprobs: [tokens] log reference, data.
        estimator: "k1", "k2", "k3" or "k3_is".
        old_logprobs: [tokens] log-probs under the policy that sampled, for "k3_is".

    Returns:
        [tokens] the estimates.
    """
    gap = jax.lax.stop_gradient(reference_logprobs - logprobs)
    if estimator == "k1":
        return with_derivative(-gap, jnp.ones_like(gap), logprobs)
    if estimator == "k2":
        return with_derivative(gap**2 / 2, -gap, logprobs)
    growth = jnp.expm1(limit_log_ratio(gap)[0])
    if estimator == "k3":
        return with_derivative(growth - gap, -growth, logprobs)
    ratio = jnp.exp(limit_log_ratio(jax.lax.stop_gradient(logprobs) - old_logprobs)[0])
    return with_derivative(ratio * (growth - gap), -ratio * gap, logprobs)


COEFFICIENT = non_negative("coefficient", "weight of the squared log-ratio", 0.1)
DRO_BETA = positive("dro_beta", "weight of half the squared log-ratio")
KL_COEF = non_negative("kl_coef", "weight of the KL penalty", 0.0)


@penalty(hyperparameters=(COEFFICIENT,), data=("old_logprobs",))
def token_square(x: LossInputs) -> Tokens:
    """coefficient d^2."""
    return squared_log_ratio(x.logprobs, x.old_logprobs, x.hyperparameters["coefficient"])


@penalty(hyperparameters=(DRO_BETA,), data=("old_logprobs",))
def half_token_square(x: LossInputs) -> Tokens:
    """DRO (https://arxiv.org/abs/2405.19107): (dro_beta / 2) d^2."""
    return squared_log_ratio(x.logprobs, x.old_logprobs, x.hyperparameters["dro_beta"] / 2)


@penalty(hyperparameters=(TAU,), data=("old_logprobs",), of_responses=True)
def response_square(x: LossInputs) -> Responses:
    """(tau / 2) S^2."""
    moved = x.sum_by_response(x.behavior_log_ratio)
    return squared_response_log_ratio(moved, x.hyperparameters["tau"])


def _kl(estimator: str, reference: str) -> Penalty:
    reference_data = {"reference": "ref_logprobs", "behavior": "old_logprobs"}[reference]
    ratio_data = ("old_logprobs",) if estimator == "k3_is" else ()

    @penalty(
        name=f"kl_{estimator}_{reference}",
        hyperparameters=(KL_COEF,),
        data=(reference_data, *ratio_data),
    )
    def kl(x: LossInputs) -> Tokens:
        """kl_coef times an estimate of KL(policy || reference)."""
        return x.hyperparameters["kl_coef"] * kl_penalty(
            x.logprobs,
            getattr(x, reference_data),
            estimator,
            x.old_logprobs if ratio_data else None,
        )

    return kl


KL_ESTIMATORS = ("k1", "k2", "k3", "k3_is")
KL_REFERENCES = ("reference", "behavior")
KL = {
    (estimator, reference): _kl(estimator, reference)
    for estimator in KL_ESTIMATORS
    for reference in KL_REFERENCES
}
