"""Objectives of 2026: numbers that public code computed for them, and identities.

golden/recent.json holds losses and gradients (rows cut at the end of the response) that functions
of the repositories named in it, at the commits named in it, computed in float64 on the batch of
golden/verl.json: prime-rl's loss functions; verl's rejection mask on -A rho; TRL's regression of
A*-PO with the policy that sampled for its reference.
"""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grre_jax import objectives

pytestmark = pytest.mark.usefixtures("float64")
examples = settings(max_examples=40, deadline=None, derandomize=True, database=None)
data = st.data()
FOLDER, INFINITE = Path(__file__).parents[1] / "golden", float("inf")

PRIME = {"term": "importance", "mask": "total_variation", "penalty": "token_square"}
# case of the file -> the same loss here; those of GRADIENT_ONLY have another value
CASES = {
    "prime_default": [
        ("reinforce", PRIME | {"coefficient": 1e-3}),
        ("dppo_tv", {"ratio_cap": INFINITE, "penalty": "token_square", "coefficient": 1e-3}),
    ],
    "prime_default_tight": [
        ("reinforce", PRIME | {"coefficient": 0.1, "divergence_low": 0.05, "divergence_high": 0.1})
    ],
    "prime_ref_kl": [
        (
            "distill",
            {
                "variant": "stored",
                "mask": "total_variation",
                "penalty": "token_square",
                "coefficient": 1e-3,
            },
        )
    ],
    "verl_seq_max_k2": [("trm", {"token_divergence": 0.6})],
    "verl_seq_max_k2_seq_mean_k3": [
        ("trm", {"variant": "both", "token_divergence": 0.35, "mean_divergence": 0.1})
    ],
    "trl_a2po_to_old": [("oapl", {})],
    "trl_a2po_to_old_strong": [("oapl", {"beta_1": 0.5, "beta_2": 0.2})],
}
GRADIENT_ONLY = {("prime_default", "dppo_tv")}


@functools.cache
def golden(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("case", "name", "options"),
    [(case, *row) for case, rows in CASES.items() for row in rows],
)
def test_loss_and_gradient_are_those_of_public_code(case, name, options):
    inputs = {name: np.asarray(values) for name, values in golden("verl")["inputs"].items()}
    objective = objectives.algorithm(name, **options)
    regression = "beta_1" in objective.hyperparameters
    batch = objectives.padded_batch(
        # A regression's advantages are of rewards; the batch's own fit no reward.
        advantages=objectives.advantages(objective, inputs["rewards"], inputs["groups"])
        if regression or name == "distill"
        else inputs["advantages"],
        mask=inputs["mask"] > 0,
        groups=inputs["groups"],
        old_logprobs=inputs["old"],
        ref_logprobs=inputs["reference"],
    )
    loss, slope = jax.value_and_grad(
        lambda logprobs: objectives.policy_loss(objective, logprobs, batch)[0]
    )(inputs["logprobs"])
    expected = golden("recent")["cases"][case]
    time = inputs["mask"].shape[1]
    grad = np.array([row + [0.0] * (time - len(row)) for row in expected["grad"]])
    np.testing.assert_allclose(slope, grad, rtol=0, atol=1e-12)
    if (case, name) not in GRADIENT_ONLY:
        np.testing.assert_allclose(loss, expected["loss"], rtol=0, atol=1e-12)


# case of the file -> the same advantages here
ADVANTAGES = {
    "gdpo_verl": {"variant": "token"},
    "gdpo_trl_2": {},
    "gdpo_trl_3": {},
    "trl_normalize_then_sum": {},
}


@pytest.mark.parametrize("case", ADVANTAGES)
def test_advantages_of_reward_components_are_those_of_public_code(case):
    inputs, recent = golden("verl")["inputs"], golden("recent")
    expected = recent["advantages"][case]
    objective = objectives.algorithm(
        "gdpo", components=",".join(expected["components"]), **ADVANTAGES[case]
    )
    found = objectives.advantages(
        objective,
        np.array(inputs["rewards"]),
        np.array(inputs["groups"]),
        lengths=np.sum(inputs["mask"], axis=1),
        components={name: np.array(values) for name, values in recent["components"].items()},
    )
    # The authors' verl takes means and standard deviations in float32.
    tolerance = 1e-6 if case == "gdpo_verl" else 1e-12
    np.testing.assert_allclose(found, expected["advantages"], rtol=0, atol=tolerance)


def test_every_case_of_the_file_is_compared():
    assert set(golden("recent")["cases"]) == set(CASES)
    assert set(golden("recent")["advantages"]) == set(ADVANTAGES)


def test_components_are_named_and_given():
    rewards, groups = np.array([1.0, 0.0]), np.zeros(2, int)
    both = {"a": rewards, "b": np.array([0.0, 1.0])}
    gdpo = objectives.algorithm("gdpo")
    every = objectives.advantages(gdpo, rewards, groups, components=both)
    named = objectives.algorithm("gdpo", components=["b", "a"])
    np.testing.assert_allclose(
        objectives.advantages(named, rewards, groups, components=both), every, atol=1e-12
    )
    alone = objectives.algorithm("gdpo", components="a")
    found = objectives.advantages(alone, rewards, groups, components=both)
    assert found[0] > 0 > found[1] and abs(every).max() < 1e-9
    with pytest.raises(ValueError, match="gdpo normalises the components .* pass components="):
        objectives.advantages(gdpo, rewards, groups)
    with pytest.raises(ValueError, match="gdpo: there is no reward component 'c'; there are a, b"):
        objectives.advantages(
            objectives.algorithm("gdpo", components="a,c"), rewards, groups, components=both
        )
    with pytest.raises(ValueError, match=r"component 'a' must be \[responses\] = \(2,\)"):
        objectives.advantages(alone, rewards, groups, components={"a": np.ones(3)})
    with pytest.raises(ValueError, match=r"component 'a'\[1\] is inf"):
        objectives.advantages(alone, rewards, groups, components={"a": np.array([1, np.inf])})


def test_a_component_that_does_not_apply_is_left_out_of_its_mean():
    """The response has nothing of that component, and the others what they have without it."""
    rewards, groups = np.zeros(4), np.zeros(4, int)
    values = np.array([1.0, 0.0, 3.0, np.nan])
    alone = objectives.algorithm("reinforce", advantage="decoupled", components="a")
    found = objectives.advantages(alone, rewards, groups, components={"a": values})
    three = (values[:3] - values[:3].mean()) / (values[:3].std(ddof=1) + 1e-6)
    spread = np.append(three, 0)
    expected = spread / (spread.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_components_are_names_of_their_own():
    with pytest.raises(ValueError, match="components must be different names"):
        objectives.algorithm("gdpo", components="a,a")
    with pytest.raises(ValueError, match="grpo: components does not apply"):
        objectives.algorithm("grpo", components="a")


def terms_of(case, *sizes):
    """[responses, time] an upper bound of what a gradient's entries are sums of."""
    ratio = 1 + np.exp(np.abs(case.moved))
    return np.where(case.live, (1 + sum(sizes)) * ratio**2, 0)


def rewards_of(case):
    return np.abs(np.where(case.groups >= 0, case.rewards, 0)).max(initial=0)


@examples
@given(data=data)
def test_oapl_is_astar_po_to_the_policy_that_sampled(gradient, strategies, data):
    case = data.draw(strategies.small)
    case = case.replace(ref=case.old)
    numbers = {"beta_1": max(case.tau, rewards_of(case) / 200), "beta_2": 0.3}
    found, expected = (
        gradient(objectives.algorithm(name, **numbers), case) for name in ("oapl", "astar_po")
    )
    np.testing.assert_array_equal(found, expected)


@examples
@given(data=data)
def test_oapl_is_reinforce_on_policy_and_opmd_with_a_mean(
    gradient, assert_within, strategies, data
):
    case = data.draw(strategies.small)
    beta_1, beta_2 = max(case.tau, rewards_of(case) / 200), 0.3
    on_policy = case.replace(old=case.logprobs)
    reinforce = objectives.algorithm(
        "reinforce", advantage="optimal_value", beta_1=beta_1, aggregation="response_sum"
    )
    oapl = objectives.algorithm("oapl", beta_1=beta_1, beta_2=beta_2)
    scale = terms_of(on_policy, rewards_of(case))
    expected = 2 * beta_2 * gradient(reinforce, on_policy)
    assert_within(gradient(oapl, on_policy), expected, scale)

    mean = objectives.algorithm("oapl", advantage="group_mean", beta_2=beta_2)
    opmd = objectives.algorithm("opmd", variant="openkimi", tau=beta_2, aggregation="response_sum")
    scale = terms_of(case, rewards_of(case), np.abs(case.moved).sum())
    assert_within(gradient(mean, case), 2 * beta_2 * gradient(opmd, case), scale)


@examples
@given(data=data)
def test_trm_keeps_or_drops_whole_responses(gradient, strategies, data):
    case, bound = data.draw(strategies.small), data.draw(st.sampled_from([1e-3, 0.05, 2.0, 100.0]))
    trm = {
        limit: objectives.algorithm("trm", token_divergence=limit) for limit in (bound, INFINITE)
    }
    found, whole = (gradient(objective, case) for objective in trm.values())
    kept = (np.where(case.live, case.moved, 0) ** 2 / 2 <= bound).all(1)
    np.testing.assert_array_equal(found, np.where(kept[:, None], whole, 0))
    plain = objectives.algorithm("m2po", mask="none", aggregation="response_sum")
    np.testing.assert_array_equal(whole, gradient(plain, case))


@examples
@given(data=data)
def test_r2vpo_pulls_the_ratio_to_one(gradient, assert_within, strategies, data):
    case, weight = data.draw(strategies.small), abs(data.draw(st.floats(0, 2)))
    plain = objectives.algorithm("m2po", mask="none")
    r2vpo = objectives.algorithm("r2vpo", variance_coef=weight)
    ratio, share = np.exp(case.moved), 1 / max(case.live.sum(), 1)
    pull = np.where(case.live, 2 * weight * (ratio - 1) * ratio, 0) * share
    assert_within(
        gradient(r2vpo, case), gradient(plain, case) + pull, terms_of(case, 1e3, weight) * share
    )
    on_policy = case.replace(old=case.logprobs)
    reinforce = objectives.algorithm("reinforce", advantage="group_std")
    np.testing.assert_allclose(
        gradient(r2vpo, on_policy), gradient(reinforce, on_policy), rtol=1e-12, atol=1e-300
    )


@examples
@given(data=data)
def test_distillation_is_the_gradient_of_the_reverse_kl(gradient, assert_within, strategies, data):
    case = data.draw(strategies.small)
    own, stored = (objectives.algorithm("distill", variant=name) for name in ("own", "stored"))
    with np.errstate(invalid="ignore"):
        gap = np.where(case.live, case.logprobs - case.ref, 0)
    for objective, estimator in ((own, "k2"), (stored, "k3_is")):
        penalty = objectives.algorithm(
            "reinforce", advantage="none", kl_coef=1.0, kl_estimator=estimator
        )
        scale = np.abs(gap) * (np.exp(case.moved) if objective is stored else 1)
        assert_within(gradient(objective, case), gradient(penalty, case), scale)
    on_policy = case.replace(old=case.logprobs)
    np.testing.assert_array_equal(gradient(stored, on_policy), gradient(own, on_policy))
    assert not gradient(own, case.replace(ref=case.logprobs)).any()
