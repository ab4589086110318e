"""REP: additive regularisers of plain REINFORCE, and the usual KL penalties.

A penalty is a per-token or a per-response term that `policy_loss` adds before it aggregates. Where
a term's gradient is not that of its value as written (a bound acts), `with_derivative` states both,
so that nothing is hidden in a stop-gradient.
"""

import jax
import jax.numpy as jnp

from grre_jax.objectives.inputs import LossInputs, Responses, Tokens, with_derivative
from grre_jax.objectives.objective import Penalty, non_negative, penalty, positive
from grre_jax.objectives.parts.advantages import TAU
from grre_jax.objectives.parts.ratios import limited

COEFFICIENT = non_negative("coefficient", "weight of the squared log-ratio", 0.1)
DRO_BETA = positive("dro_beta", "weight of half the squared log-ratio")
KL_COEF = non_negative("kl_coef", "weight of the KL penalty", 0.0)


@penalty(hyperparameters=(COEFFICIENT,), data=("old_logprobs",))
def token_square(x: LossInputs) -> Tokens:
    """coefficient d^2.

    OPMD per token, as the experiments of https://arxiv.org/abs/2509.24203 (the usual 1/2 is
    absorbed in the coefficient).
    """
    return x.hyperparameters["coefficient"] * x.behavior_log_ratio**2


@penalty(hyperparameters=(DRO_BETA,), data=("old_logprobs",))
def half_token_square(x: LossInputs) -> Tokens:
    """DRO (https://arxiv.org/abs/2405.19107): (dro_beta / 2) d^2."""
    return x.hyperparameters["dro_beta"] / 2 * x.behavior_log_ratio**2


@penalty(hyperparameters=(TAU,), data=("old_logprobs",), of_responses=True)
def response_square(x: LossInputs) -> Responses:
    """(tau / 2) S^2.

    OPMD of Kimi k1.5 (https://arxiv.org/abs/2501.12599).
    """
    return x.hyperparameters["tau"] / 2 * x.sum_by_response(x.behavior_log_ratio) ** 2


def _kl(estimator: str, reference: str) -> Penalty:
    reference_data = KL_REFERENCES[reference]
    ratio_data = ("old_logprobs",) if estimator == "k3_is" else ()

    @penalty(
        name=f"kl_{estimator}_{reference}",
        hyperparameters=(KL_COEF,),
        data=(reference_data, *ratio_data),
    )
    def kl(x: LossInputs) -> Tokens:
        """kl_coef times an estimate of KL(policy || reference).

        One of Schulman's estimators for each token (http://joschu.net/blog/kl-approx.html): with
        x = log reference - log policy, k1 = -x; k2 = x^2 / 2; k3 = e^x - 1 - x. As losses, k1 has
        no gradient on-policy in expectation, k2 has that of the reverse KL, and k3 a
        forward-KL-like one. k3_is is rho k3, with rho the ratio to the policy that sampled and the
        gradient through both: unbiased on that policy's tokens, value and gradient (DeepSeek-V3.2).
        The e^x of k3 and rho are bounded by `ratios.LOG_RATIO_LIMIT`.
        """
        coefficient = x.hyperparameters["kl_coef"]
        gap = jax.lax.stop_gradient(getattr(x, reference_data) - x.logprobs)
        if estimator == "k1":
            return coefficient * with_derivative(-gap, jnp.ones_like(gap), x.logprobs)
        if estimator == "k2":
            return coefficient * with_derivative(gap**2 / 2, -gap, x.logprobs)
        # e^x - 1, accurate near x = 0, and minus the derivative of k3 by the log-prob.
        growth = jnp.expm1(limited(gap))
        if estimator == "k3":
            return coefficient * with_derivative(growth - gap, -growth, x.logprobs)
        ratio = jnp.exp(limited(jax.lax.stop_gradient(x.behavior_log_ratio)))
        # By the product rule rho (k3 - growth), in which the exponentials of x cancel: -rho x.
        return coefficient * with_derivative(ratio * (growth - gap), -ratio * gap, x.logprobs)

    return kl


KL_ESTIMATORS = ("k1", "k2", "k3", "k3_is")
KL_REFERENCES = {"reference": "ref_logprobs", "behavior": "old_logprobs"}
KL = {
    (estimator, reference): _kl(estimator, reference)
    for estimator in KL_ESTIMATORS
    for reference in KL_REFERENCES
}
