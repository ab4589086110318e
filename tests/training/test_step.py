import dataclasses
import itertools

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from grre_jax import models, objectives, parallel
from grre_jax.models.config import ModelConfig
from grre_jax.training import step as training_state
from grre_jax.training.data.pack import BatchShape, pack
from grre_jax.training.optimizer import OptimizerConfig
from grre_jax.training.policies import score_groups
from grre_jax.training.step import loss_and_gradient, make_train_step

CONFIG = ModelConfig(
    vocab_size=16,
    hidden_size=16,
    intermediate_size=24,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
)
TEMPERATURE = np.float32(0.8)
KEY = jax.random.key(5)
# The largest step (5 groups of 4 completions within 4 + 6 tokens), in one micro-batch and in
# several, of which the last stay empty.
WHOLE = BatchShape.of_run(5, 4, 4, 6, 28, rows=0, turns=3)
SPLIT = BatchShape.of_run(5, 4, 4, 6, 28, rows=1, turns=3)


@pytest.fixture(scope="module")
def parts():
    model = models.Transformer(CONFIG, rngs=nnx.Rngs(1))
    graph, params = nnx.split(model)
    return graph, nnx.to_pure_dict(params)


def padded(groups):
    """One row a completion with its group's prompt in front: tokens, mask, behaviour log-probs."""
    rows = []
    for group in groups:
        prompt = len(group.prompt_tokens)
        for start, stop in itertools.pairwise(group.offsets):
            row = np.zeros((3, 12), np.float32)
            row[0, :prompt] = group.prompt_tokens
            parts = np.stack([group.tokens, group.mask, group.behavior_logprobs])
            row[:, prompt : prompt + stop - start] = parts[:, start:stop]
            rows.append(row)
    tokens, mask, old = np.stack(rows, axis=1)
    return tokens.astype(np.int32), mask.astype(bool), old


def rewards_and_ids(groups):
    """Of each completion, and the number of its group."""
    sizes = [group.num_completions for group in groups]
    return np.concatenate([g.rewards for g in groups]), np.repeat(np.arange(len(groups)), sizes)


@pytest.fixture(scope="module")
def logprobs(parts):
    return jax.jit(
        lambda params, tokens: models.token_logprobs(
            nnx.merge(parts[0], params), tokens, temperature=TEMPERATURE
        )
    )


@pytest.fixture(scope="module")
def groups(make_group, parts):
    """Four groups, one with equal rewards and one with an observation, sampled by a policy
    somewhat beside the present one.
    """
    mask = ~np.isin(np.arange(14), (2, 7, 8))
    made = [
        make_group(0, prompt=3, lengths=(6, 2, 4), rewards=[1, 0, 0]),
        make_group(1, prompt=4, lengths=(1, 6, 6, 5), rewards=[0, 1, 1, 0]),
        make_group(2, prompt=1, lengths=(3, 3), rewards=[1, 1]),
        make_group(3, prompt=2, lengths=(5, 2, 6, 1), rewards=[0.5, 0, 0.25, 0], mask=mask),
    ]
    mesh = parallel.make_mesh(parallel.MeshConfig())
    scores = score_groups(*parts, made, mesh, temperature=TEMPERATURE)
    draw = np.random.default_rng(13)
    return [
        dataclasses.replace(
            g, behavior_logprobs=np.minimum(own + 0.4 * draw.normal(size=own.size), 0)
        )
        for g, own in zip(made, scores, strict=True)
    ]


@pytest.fixture(scope="module")
def compute(parts):
    """(loss, gradient, metrics) of a step."""
    return jax.jit(
        lambda batch, objective: loss_and_gradient(
            parts[0], parts[1], batch, objective, TEMPERATURE, KEY
        )
    )


def assert_close(left, right, tolerance=1e-5, least=1.0):
    """To the tolerance of the largest entry, or of `least`."""
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(right))
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(scale, least))


def assert_by_hand(found, objective, groups, parts, logprobs, **policies):
    """Loss and gradient are those of one padded row a completion."""
    tokens, mask, old = padded(groups)
    rewards, ids = rewards_and_ids(groups)
    batch = objectives.padded_batch(
        old_logprobs=old,
        advantages=objectives.advantages(objective, rewards, ids),
        mask=mask,
        groups=ids,
        rewards=rewards,
        **policies,
    )
    by_hand, hand_gradient = jax.jit(
        jax.value_and_grad(
            lambda params: objectives.policy_loss(objective, logprobs(params, tokens), batch)[0]
        )
    )(parts[1])
    assert_close(found[0], by_hand)
    assert_close(found[1], hand_gradient)
    assert optax.global_norm(hand_gradient) > 1e-3


GRPO = {
    "epsilon_low": 0.2,
    "epsilon_high": 0.3,
    "aggregation": "response",
    "kl_coef": 0.1,
    "kl_reference": "behavior",
}


@pytest.mark.parametrize(
    "name, options",
    [
        pytest.param("grpo", GRPO, marks=pytest.mark.slow),
        # Decides by the whole step: the first phase is a forward pass of its own.
        ("m2po", {"m2_threshold": 0.05}),
        # Decides by the order of tokens.
        pytest.param("grpo_veto", {"veto_low": 0.9, "veto_high": 1.1}, marks=pytest.mark.slow),
        pytest.param("gepo", {}, marks=pytest.mark.slow),
    ],
)
def test_packed_micro_batches_give_the_step_of_one_batch_and_of_padded_rows(
    name, options, parts, groups, compute, logprobs
):
    """Of one batch to 2e-6 of the largest entry of the gradient, in float32."""
    objective = objectives.algorithm(name, **options)
    whole_loss, whole_gradient, whole_metrics = compute(pack(groups, WHOLE), objective)
    batch = pack(groups, SPLIT)
    assert WHOLE.micro_batches == 1 and SPLIT.micro_batches > 3 and not batch.mask[-1].any()
    loss, gradient, metrics = compute(batch, objective)
    assert_close(loss, whole_loss)
    assert_close(gradient, whole_gradient, 2e-6, least=1e-4)
    whole_metrics = jax.tree.map(float, whole_metrics)
    assert jax.tree.map(float, metrics) == pytest.approx(whole_metrics, abs=1e-5)
    assert_by_hand((loss, gradient), objective, groups, parts, logprobs)


def test_the_reference_is_its_own_policy_and_the_proximal_one_is_the_policy(
    parts, groups, compute, logprobs
):
    """KL to the reference and the correction of a mismatch, micro-batches included."""
    objective = objectives.algorithm(
        "grpo", aggregation="response", correction="tis", correction_cap=1.2, kl_coef=0.3
    )
    reference = jax.tree.map(
        lambda x: x + 0.1 * np.sin(np.arange(x.size)).reshape(x.shape).astype(x.dtype), parts[1]
    )
    step = jax.jit(
        lambda batch: loss_and_gradient(*parts, batch, objective, TEMPERATURE, KEY, reference)
    )
    found = step(pack(groups, SPLIT))
    tokens, _, _ = padded(groups)
    policies = {"prox_logprobs": parts[1], "ref_logprobs": reference}
    expected = {name: logprobs(params, tokens) for name, params in policies.items()}
    assert_by_hand(found, objective, groups, parts, logprobs, **expected)
    assert float(found[2]["kl_reference_k3"]) > 1e-3
    assert 0.1 < float(found[2]["correction_mean"]) < 1.2
    # Stored ones give the same step.
    mesh = parallel.make_mesh(parallel.MeshConfig())
    given = groups
    for name, params in policies.items():
        scores = score_groups(parts[0], params, groups, mesh, temperature=TEMPERATURE)
        given = [dataclasses.replace(g, **{name: x}) for g, x in zip(given, scores, strict=True)]
    stored = compute(pack(given, SPLIT, stored=tuple(policies)), objective)
    assert_close(stored[:2], found[:2])
    # A stored proximal policy may be another than the policy.
    given = [dataclasses.replace(g, prox_logprobs=g.ref_logprobs) for g in given]
    stored = compute(pack(given, SPLIT, stored=tuple(policies)), objective)
    expected["prox_logprobs"] = expected["ref_logprobs"]
    assert_by_hand(stored, objective, groups, parts, logprobs, **expected)


@pytest.fixture(scope="module")
def trainer(parts):
    """A train step, and a function that returns its first state."""
    config = OptimizerConfig(
        name="sgd", learning_rate=1.0, warmup_steps=10, b1=0.0, clip_norm=0.0, ess_exponent=2.0
    )
    mesh = parallel.make_mesh(parallel.MeshConfig())
    step = make_train_step(parts[0], config, mesh)
    return step, lambda: training_state.fresh(training_state.copied(parts[1], mesh), config, mesh)


def test_one_compilation_serves_steps_data_and_numbers(trainer, groups, make_group, caplog):
    """Data shaping draws anew in each step, also of the same data, parameters and key."""
    step, start = trainer
    state = start()
    given = state.params
    losses = set()
    with jax.log_compiles():
        for number in range(6):
            numbers = GRPO | {"epsilon_low": 0.1 + 0.1 * number}
            objective = objectives.algorithm("grpo", advantage="red_drop", **numbers)
            small = make_group(10 + number, prompt=1 + number % 3, lengths=(1 + number, 3))
            batch = pack(groups if number % 2 else [small], SPLIT)
            state, metrics = step(state, batch, objective, np.float32(0.5 + 0.1 * number), KEY)
            assert float(metrics["learning_rate"]) == pytest.approx(0.1 * (number + 1))
        batch = pack([make_group(0, prompt=2, lengths=(2,) * 4, rewards=[1, 0, 0, 0])], SPLIT)
        for number in range(6):
            later = dataclasses.replace(start(), step=state.step + number)
            _, metrics = step(later, batch, objective, TEMPERATURE, KEY)
            losses.add(float(metrics["loss"]))
    assert sum("Compiling jit(train_step)" in record.getMessage() for record in caplog.records) == 1
    assert int(state.step) == 6 and len(losses) > 1
    assert given["embed"].is_deleted()  # the state is donated: no second copy


def test_a_step_moves_along_the_gradient_and_measures_its_data(trainer, parts, groups, compute):
    """By the effective sample size of its responses."""
    step, start = trainer
    objective = objectives.algorithm("grpo", **GRPO)
    batch = pack(groups, SPLIT)
    state, metrics = step(start(), batch, objective, TEMPERATURE, KEY)
    rewards, _ = rewards_and_ids(groups)
    masked = sum(int(g.mask.sum()) for g in groups)
    _, gradient, _ = compute(batch, objective)
    expected = {
        "reward": rewards.mean(),
        "response_tokens": masked,
        "response_length": masked / len(rewards),
        "zero_variance_groups": 1 / 4,
        "grad_norm": float(optax.global_norm(gradient)),
        # Three micro-batches of five have tokens.
        "packing_efficiency": np.mean(batch.segment_ids > 0) * 5 / 3,
    }
    assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-4)
    share = float(metrics["effective_sample_size_responses"])
    assert 0.1 < share < 0.9 and 0 < float(metrics["clip_fraction"]) < 1
    change = jax.tree.map(lambda x, y: x - y, state.params, parts[1])
    # The rate of the warm-up's first step is 0.1.
    assert_close(change, jax.tree.map(lambda x: -0.1 * share**2 * x, gradient), 1e-6)


def test_returns_of_turns_reach_the_tokens_of_their_turns(groups, compute):
    """Completions of one turn give the step of their rewards, to the bit."""
    objective = objectives.algorithm("grpo", returns="turns", discount=0.5, **GRPO)
    rewards = objectives.algorithm("grpo", **GRPO)
    plain = compute(pack(groups[:3], SPLIT), rewards)
    one = compute(pack(groups[:3], SPLIT, turns=True), objective)
    jax.tree.map(np.testing.assert_array_equal, one[:2], plain[:2])
    turns = {"turn_counts": [2, 1, 2, 1], "turn_tokens": [0, 2, 3, 5, 0, 2, 2, 3, 3, 6, 0, 1]}
    turns |= {"turn_texts": [0] * 12, "turn_rewards": [0.5, 0, 0, 0, 0.25, 0]}
    played = [*groups[:3], dataclasses.replace(groups[3], **turns)]
    whole, split = (compute(pack(played, shape, turns=True), objective) for shape in (WHOLE, SPLIT))
    assert_close(split[:2], whole[:2], 2e-6)
    with pytest.raises(AssertionError):
        assert_close(split[1], compute(pack(groups, SPLIT), rewards)[1], 1e-3)


def test_an_experts_responses_have_the_ratio_one_in_all_metrics(groups, compute):
    """Whether or not log-probs are stored with them; no policy of the run sampled them."""
    objective = objectives.algorithm("chord")
    found = []
    for logprobs in (None, groups[1].behavior_logprobs, groups[1].behavior_logprobs - 3):
        expert = np.ones(groups[1].num_completions, np.uint8)
        shown = dataclasses.replace(groups[1], is_expert=expert, behavior_logprobs=logprobs)
        metrics = compute(pack([groups[0], shown], SPLIT, expert=True), objective)[2]
        found.append(jax.tree.map(float, metrics))
    assert found[0] == pytest.approx(found[1]) == found[2]
    assert found[0]["effective_sample_size"] > 0.5


def test_a_share_of_replayed_experts_is_of_the_whole_step(make_group):
    """However the step is cut, and though some groups of it replay none; imbalance is a penalty."""
    config = dataclasses.replace(CONFIG, family="mixtral", num_experts=4, experts_per_token=2)
    graph, params = nnx.split(models.Transformer(config, rngs=nnx.Rngs(1)))
    params = nnx.to_pure_dict(params)
    objective = objectives.algorithm("chord")
    draw = np.random.default_rng(0)
    made = [make_group(i, prompt=2, lengths=(5, 6, 4), rewards=[1, 0, 0]) for i in range(4)]
    for number, group in enumerate(made):
        if number < 2:
            group.routes = (2 * draw.integers(0, 2, (17, 1)) + [0, 1]).reshape(-1)
        else:
            group.is_expert = np.ones(3, np.uint8)

    @jax.jit
    def computed(batch, balance):
        return loss_and_gradient(
            graph, params, batch, objective, TEMPERATURE, KEY, router_balance=balance
        )

    batches = [
        pack(made, dataclasses.replace(shape, routes=(1, 2)), expert=True)
        for shape in (WHOLE, SPLIT)
    ]
    (loss, _, metrics), (_, _, split) = (computed(batch, 0.0) for batch in batches)
    assert 0 < metrics["router_gap"] < 1
    assert float(split["router_gap"]) == pytest.approx(float(metrics["router_gap"]))
    penalised = computed(batches[0], 0.5)[0]
    imbalance = float(metrics["router_imbalance"])
    assert float(penalised - loss) == pytest.approx(imbalance / 2, rel=1e-4)
