"""The gradient and value of every algorithm against formulas written by hand in NumPy, and what the loss refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax import objectives

pytestmark = pytest.mark.usefixtures("float64")

LOW, HIGH, LOW_PRIME, HIGH_PRIME = 0.2, 0.3, 0.5, 1.0
CLIP = {"epsilon_low": LOW, "epsilon_high": HIGH}
RING = {**CLIP, "epsilon_low_prime": LOW_PRIME, "epsilon_high_prime": HIGH_PRIME}


def one_side(ratio, advantage):
    return (advantage >= 0 and ratio <= 1 + HIGH) or (advantage <= 0 and ratio >= 1 - LOW)


def two_side(ratio, advantage):
    return 1 - LOW <= ratio <= 1 + HIGH


def ring(ratio, advantage):
    back = (advantage >= 0 and ratio <= 1 - LOW_PRIME) or (advantage <= 0 and ratio >= 1 + HIGH_PRIME)
    return two_side(ratio, advantage) or back


def centred(rewards):
    return rewards - rewards.mean() if np.ptp(rewards) else np.zeros_like(rewards)


def standard(rewards):
    return centred(rewards) / (rewards.std() + 1e-6) if np.ptp(rewards) else np.zeros_like(rewards)


def one(advantage, ratio):
    return 1.0


def importance(advantage, ratio):
    return ratio


def log_mean_exp(rewards):
    return rewards - 0.7 * np.log(np.mean(np.exp(rewards / 0.7)))


# name: numbers, advantages of a group, importance weight, mask
ALGORITHMS = {
    "reinforce": ({}, centred, one, None),
    "grpo": (CLIP, standard, importance, one_side),
    "rec_oneside_is": (CLIP, centred, importance, one_side),
    "rec_oneside_nois": (CLIP, centred, one, one_side),
    "rec_twoside_is": (CLIP, centred, importance, two_side),
    "rec_twoside_nois": (CLIP, centred, one, two_side),
    "rec_ring_is": (RING, centred, importance, ring),
    "rec_ring_nois": (RING, centred, one, ring),
    "opmd": ({"tau": 0.7}, centred, one, None),
    "opmd_token": ({"coefficient": 0.4}, centred, one, None),
    "opmd_logavgexp": ({"tau": 0.7}, log_mean_exp, lambda advantage, ratio: 1 / 1.7, None),
    "asymre": ({"beta": 0.3}, lambda rewards: centred(rewards) + 0.3, one, None),
    "red_drop": ({}, centred, one, None),
    "red_weight": ({"tau": 0.7}, centred, lambda advantage, ratio: np.exp(advantage / 0.7), None),
}


def reference(name, aggregation, case, dropped):
    """Loss and gradient, token by token."""
    _, advantages_of, weight_of, mask_of = ALGORITHMS[name]
    live = case.groups >= 0
    groups = sorted(set(case.groups[live]))
    tokens = case.mask[live].sum()
    loss, gradient = 0.0, np.zeros_like(case.logprobs)
    for group in groups:
        members = np.flatnonzero((case.groups == group) & ~dropped)
        size = np.sum(case.groups == group)
        for i, advantage in zip(members, advantages_of(case.rewards[members]), strict=True):
            length = case.mask[i].sum()
            divisors = {"token": tokens, "group": size * len(groups), "response": max(length, 1) * live.sum(), "constant": 10 * live.sum()}
            scale = 1 / divisors[aggregation]
            moved = case.logprobs[i] - case.old[i]
            total = np.sum(moved[case.mask[i]])
            if name == "opmd":
                loss += scale * 0.7 / 2 * total**2
            for t in np.flatnonzero(case.mask[i]):
                ratio = np.exp(moved[t])
                weight = weight_of(advantage, ratio)
                passes = mask_of is None or mask_of(ratio, advantage)
                reached = ratio if passes else np.clip(ratio, 1 - LOW, 1 + HIGH)
                value = reached if weight_of is importance else weight * (case.old[i, t] + np.log(reached))
                loss -= scale * advantage * value
                gradient[i, t] -= scale * advantage * weight * passes
                if name == "opmd":
                    gradient[i, t] += scale * 0.7 * total
                if name == "opmd_token":
                    loss += scale * 0.4 * moved[t] ** 2
                    gradient[i, t] += scale * 2 * 0.4 * moved[t]
    return loss, gradient


def random_case(example, seed):
    generator = np.random.default_rng(seed)
    old = generator.normal(-2, 1, example.old.shape)
    moved = generator.normal(0, 0.6, old.shape)
    rewards = generator.choice([generator.integers(0, 2, 7), generator.normal(0, 2, 7), np.full(7, 0.7)])
    return example.replace(logprobs=old + moved, old=old, mask=generator.random(old.shape) < 0.8, rewards=rewards.astype(float))


def compare(gradient, close, name, aggregation, case):
    options = {"constant_length": 10.0} if aggregation == "constant" else {}
    objective = objectives.algorithm(name, aggregation=aggregation, **options, **ALGORITHMS[name][0])
    shaped = gradient.shaped(objective, case)
    dropped = np.zeros(7, bool) if shaped.dropped is None else np.asarray(shaped.dropped)
    slope, metrics = gradient.both(objective, case, shaped)
    loss, expected = reference(name, aggregation, case, dropped)
    close(slope, expected)
    close(metrics["loss"], loss, scale=1)


@pytest.mark.parametrize("name", objectives.algorithms())
def test_loss_and_gradient_are_the_formula(gradient, assert_close, example, name):
    aggregation = "group" if name == "opmd" else "token"
    compare(gradient, assert_close, name, aggregation, example)
    for seed in range(30):
        compare(gradient, assert_close, name, aggregation, random_case(example, seed))


@pytest.mark.parametrize(("name", "aggregation"), [("opmd", "token"), ("grpo", "group"), ("grpo", "response"), ("grpo", "constant")])
def test_aggregations(gradient, assert_close, example, name, aggregation):
    compare(gradient, assert_close, name, aggregation, example)


def test_the_reference_can_fail(gradient, assert_close, example, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "grpo", (CLIP, centred, importance, one_side))
    with pytest.raises(AssertionError):
        compare(gradient, assert_close, "grpo", "token", example)


def test_micro_batches_cut_out_add_up(gradient, assert_close, example):
    """Rows 0-2 and 3-6 as two smaller token arrays, given the counts of the whole."""
    objective = objectives.algorithm("opmd", aggregation="response")
    batch = gradient.batch(example, gradient.shaped(objective, example))
    whole, _ = gradient.both(objective, example)
    run = jax.jit(jax.grad(lambda logprobs, part, stats: objectives.policy_loss(objective, logprobs, part, stats)[0]))
    stats = gradient.stats(batch)
    slopes = [run(example.logprobs.reshape(-1)[part], batch.select_tokens(part), stats) for part in (slice(0, 12), slice(12, 28))]
    assert_close(np.concatenate(slopes), whole.reshape(-1))


def test_nothing_flows_into_the_data(example):
    objective = objectives.algorithm("grpo", kl_coef=0.1, kl_reference="behavior")

    def loss(old, advantages):
        batch = objectives.padded_batch(advantages=advantages, mask=example.mask, groups=example.groups, old_logprobs=old)
        return objectives.policy_loss(objective, example.logprobs, batch)[0]

    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))(example.old, example.rewards)
    assert all(np.all(slope == 0) for slope in slopes)


def test_bfloat16_logprobs_are_reduced_in_float32(example):
    batch = objectives.padded_batch(
        advantages=np.ones(7, np.float32), mask=example.mask, groups=example.groups, old_logprobs=example.old.astype(np.float32)
    )
    with jax.enable_x64(False):
        batch = jax.tree.map(lambda leaf: leaf.astype(np.int32) if leaf.dtype == np.int64 else leaf, batch)
        loss, metrics = jax.jit(objectives.policy_loss)(objectives.algorithm("grpo"), jnp.asarray(example.logprobs, jnp.bfloat16), batch)
    assert loss.dtype == np.float32 and all(value.dtype == np.float32 for value in metrics.values())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("grpo", {}, "grpo needs old_logprobs"),
        ("rec_oneside_nois", {}, "rec_oneside_nois needs old_logprobs"),
        ("reinforce", {"kl_coef": 0.1}, "reinforce needs ref_logprobs"),
        ("red_drop", {"denominator": "kept"}, "pass dropped="),
    ],
)
def test_missing_data_is_named(name, options, message):
    batch = objectives.padded_batch(advantages=np.ones(2), mask=np.ones((2, 3)), groups=np.array([0, 0]))
    with pytest.raises(ValueError, match=message):
        objectives.policy_loss(objectives.algorithm(name, **options), np.zeros((2, 3)), batch)


def test_logprobs_of_another_size_are_refused():
    batch = objectives.padded_batch(advantages=np.ones(2), mask=np.ones((2, 3)), groups=np.array([0, 0]))
    with pytest.raises(ValueError, match="8 entries, but the batch has 6 tokens"):
        objectives.policy_loss(objectives.algorithm("reinforce"), np.zeros((2, 4)), batch)
