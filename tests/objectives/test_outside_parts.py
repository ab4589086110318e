"""Parts that are defined outside the package: chosen by option, in a row, and trained on."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax import objectives
from grre_jax.objectives import table
from grre_jax.objectives.parts import masks, penalties, ratios, weights

# Each part states a built-in one anew, with hyperparameters of its own.
FILE = '''
import jax
import jax.numpy as jnp
from grre_jax import objectives as o
from grre_jax.objectives.parts.ratios import level_log_ratio, level_ratio

WIDTH = o.Hyperparameter("width", "half-width of the band of ratios", 0.25, low=0)
SHIFT = o.Hyperparameter("shift", "how far the baseline is lowered", low=0)


@o.mask(hyperparameters=(WIDTH,), data=(o.RATIO,))
def band(x):
    """Passes ratios in the band; a zero advantage passes."""
    return (jnp.abs(level_ratio(x) - 1) <= x.hyperparameters["width"]) | (x.advantages == 0)


@o.weight(data=(o.RATIO,))
def truncated(x):
    """min(rho, 1)."""
    weight = jnp.clip(level_ratio(x), 0, 1)
    return weight, jnp.zeros(weight.shape, bool)


@o.advantage(hyperparameters=(SHIFT,), acts_without_variance=True)
def lowered(x):
    """A = r - (mean(r) - shift)."""
    mean = x.groups.mean(x.rewards)
    return jnp.where(x.groups.live, x.rewards - mean + x.hyperparameters["shift"], 0)


@o.shaping(drops="groups of equal rewards")
def varied(x):
    """Drops groups of equal rewards."""
    return x.rewards, x.groups.live & x.groups.alike(x.rewards)


@o.level(description="a whole response")
def whole(x):
    """S."""
    return x.at_tokens(x.sum_by_response(x.log_ratio))


@o.ratio_reference(data=("prox_logprobs",), description="p")
def start(x):
    """p."""
    return x.prox_logprobs


@o.correction(data=(o.RATIO, "old_logprobs"))
def plain(x):
    """e^(p - q)."""
    mismatch = x.ratio_reference_logprobs - x.old_logprobs
    return jnp.exp(mismatch), jnp.zeros(mismatch.shape, bool)


@o.filter_(data=("old_logprobs",))
def good(x):
    """Keeps responses with A >= 0 or a mean of q - l of at most 0.1."""
    return (x.advantages >= 0) | (x.mean_over_response(-x.behavior_log_ratio) <= 0.1)


@o.penalty(hyperparameters=(WIDTH,), data=("old_logprobs",))
def square(x):
    """width d^2."""
    return x.hyperparameters["width"] * (x.logprobs - x.old_logprobs) ** 2


@o.aggregation
def by_response(counts, lengths, hyperparameters):
    """Mean over responses of the sum over tokens."""
    return counts.responses


@o.term(data=(o.RATIO,), uses=("mask",))
def importance(x):
    """-A rho M."""
    unclipped = x.objective.mask(x)
    value = -x.advantages * level_ratio(x) * unclipped
    return o.Contribution(value, value, unclipped)


def _largest(x):
    moved = jnp.where(x.mask, jnp.abs(level_log_ratio(x)), 0)
    return {"largest_log_ratio": jnp.max(moved, initial=0)}


@o.mask(data=(o.RATIO,), gathers=(o.Statistic(("largest_log_ratio",), _largest),))
def not_the_largest(x):
    """Stops the token of the batch that has moved most."""
    return jnp.abs(level_log_ratio(x)) < 0.999 * x.stats.gathered["largest_log_ratio"]


@o.mask(hyperparameters=(o.Hyperparameter("epsilon_low", "of another meaning", 9.0),))
def clashing(x):
    """Declares a name of the package otherwise."""
    return x.mask
'''
GENERATOR = np.random.default_rng(0)
GROUPS = np.array([0, 0, 0, 1, 1, 1])
REWARDS = np.array([0.0, 1.0, 3.0, 1.0, 1.0, 1.0])
OLD, PROX, LOGPROBS = (GENERATOR.normal(-2, 0.5, (6, 4)) for _ in range(3))
MASK = GENERATOR.random((6, 4)) < 0.8


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def make_batch(objective):
    shaped = objectives.shape_data(objective, REWARDS, GROUPS)
    return objectives.padded_batch(
        advantages=shaped.advantages,
        dropped=shaped.dropped,
        mask=MASK,
        groups=GROUPS,
        old_logprobs=OLD,
        prox_logprobs=PROX,
    )


def gradient(objective):
    batch = make_batch(objective)
    return jax.grad(lambda logprobs: objectives.policy_loss(objective, logprobs, batch)[0])(
        jnp.array(LOGPROBS)
    )


# option, name, the row that it changes, further options, the same of built-in parts, and what the
# part declares
CASES = [
    ("mask", "band", "reinforce", {"width": 0.5}, ("rec_twoside_nois", 0.5), {"width"}),
    ("weight", "truncated", "reinforce", {}, ("truncated_is", {}), set()),
    ("advantage", "lowered", "reinforce", {"shift": 0.3}, ("asymre", {"beta": 0.3}), {"shift"}),
    ("level", "whole", "rec_oneside_is", {}, ("rec_oneside_is", {"level": "sequence_sum"}), set()),
    ("ratio_reference", "start", "grpo", {}, ("grpo", {"ratio_reference": "proximal"}), set()),
    (
        "correction",
        "plain",
        "grpo",
        {},
        ("grpo", {"correction": "tis", "correction_cap": np.inf}),
        set(),
    ),
    ("filter", "good", "grpo", {}, ("opsm", {}), set()),
    ("penalty", "square", "reinforce", {"width": 0.1}, ("opmd_token", {}), {"width"}),
    ("aggregation", "by_response", "grpo", {}, ("grpo", {"aggregation": "response_sum"}), set()),
]


@pytest.mark.parametrize(
    ("option", "name", "row", "options", "same", "own"), CASES, ids=[case[0] for case in CASES]
)
def test_a_part_from_a_file_is_what_it_states(file, option, name, row, options, same, own):
    objective = objectives.algorithm(row, **{option: f"{file}:{name}"}, **options)
    other, given = same
    given = given if isinstance(given, dict) else {"epsilon_low": given, "epsilon_high": given}
    built_in = objectives.algorithm(other, **given)
    assert own <= set(objective.hyperparameters)
    assert objective.requires == built_in.requires
    np.testing.assert_allclose(gradient(objective), gradient(built_in), rtol=1e-6, atol=1e-7)


def test_a_shaping_drops_and_a_term_is_an_algorithm(file):
    shaped = objectives.shape_data(
        objectives.algorithm("reinforce", shaping=f"{file}:varied"), REWARDS, GROUPS
    )
    np.testing.assert_array_equal(shaped.dropped, GROUPS == 1)
    objective = objectives.algorithm(f"{file}:importance", advantage="group_std", mask="one_side")
    assert objective.name == "importance" and objective.requires == {"old_logprobs"}
    built_in = objectives.algorithm("m2po", mask="one_side")
    np.testing.assert_array_equal(gradient(objective), gradient(built_in))


def test_parts_compose_without_a_name(file):
    """Another term, with what it uses of the row, and several penalties at once."""
    squares = {"coefficient": 0.1, "dro_beta": 0.2, "width": 0.3}
    objective = objectives.algorithm(
        "rec_twoside_nois",
        term="importance",
        penalty=f"token_square, half_token_square, {file}:square",
        **squares,
    )
    assert objective.mask == masks.two_side and objective.term.name == "importance"
    one_by_one = [
        objectives.algorithm("m2po", advantage="group_mean", mask="two_side"),
        *(
            objectives.algorithm("raft", penalty=penalty, reward_threshold=1e9, **{name: value})
            for penalty, (name, value) in zip(
                ("token_square", "half_token_square", f"{file}:square"),
                squares.items(),
                strict=True,
            )
        ),
    ]
    one_by_one = [dataclasses.replace(each, denominator="all") for each in one_by_one]
    np.testing.assert_allclose(
        gradient(objective), sum(map(gradient, one_by_one)), rtol=1e-6, atol=1e-7
    )
    listed = objectives.algorithm(
        "reinforce", penalty=["token_square", penalties.KL["k2", "behavior"]]
    )
    assert [part.name for part in listed.penalties] == ["token_square", "kl_k2_behavior"]
    # What the row has and another term does not use is left out, with its hyperparameters.
    gated = objectives.algorithm("grpo", term="soft_gate")
    assert gated.mask == masks.unmasked and "epsilon_low" not in gated.hyperparameters
    assert gated.parts == objectives.algorithm("sapo", aggregation="token").parts


def test_a_part_that_decides_by_the_whole_batch(file):
    objective = objectives.algorithm("reinforce", mask=f"{file}:not_the_largest")
    assert objective.needs_policy_stats and len(objective.gathers) == 1
    batch = make_batch(objective)
    _, metrics = objectives.policy_loss(objective, LOGPROBS, batch)
    stats = objectives.batch_stats(batch, objective, LOGPROBS)
    parts = [
        objectives.policy_loss(
            objective, LOGPROBS.reshape(-1)[half], batch.select_tokens(half), stats
        )[1]
        for half in (slice(0, 12), slice(12, 24))
    ]
    for name in ("loss", "clip_fraction"):
        assert float(parts[0][name] + parts[1][name]) == pytest.approx(float(metrics[name]))
    moved = np.where(MASK, np.abs(LOGPROBS - OLD), 0)
    stopped = (gradient(objective) == 0) & MASK & (GROUPS == 0)[:, None]
    where = moved == moved.max()
    np.testing.assert_array_equal(stopped, where & (GROUPS == 0)[:, None])


def test_a_row_of_the_table_takes_it_and_trains(file, monkeypatch):
    """One definition and one word in a row: then the name trains, sweeps and shows like any."""
    band = objectives.algorithm("reinforce", mask=f"{file}:band").mask
    row = table.Row("g = -A grad l where |rho - 1| <= width", ("Mine", ""), {"mask": band})
    monkeypatch.setattr(
        sys.modules["grre_jax.objectives.algorithms"], "TABLE", {**table.TABLE, "mine": row}
    )
    assert {row.name: row for row in objectives.algorithm_table()}["mine"].defaults == {
        "width": 0.25,
        "aggregation": "token",
    }
    arms = np.array([0, 1, 2, 0, 1, 2])
    rewards = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    old = np.full((6, 1), -np.log(3))

    def trained(objective):
        advantages = objectives.advantages(objective, rewards, GROUPS)
        batch = objectives.padded_batch(
            advantages=advantages, mask=np.ones((6, 1)), groups=GROUPS, old_logprobs=old
        )

        def loss(logits):
            logprobs = jax.nn.log_softmax(logits)[arms][:, None]
            return objectives.policy_loss(objective, logprobs, batch)[0]

        def step(logits, _):
            return logits - 0.5 * jax.grad(loss)(logits), None

        return jax.nn.softmax(jax.lax.scan(step, jnp.zeros(3), None, 40)[0])

    widths = (0.05, 0.5, 10.0)
    swept = objectives.stack([objectives.algorithm("mine", width=width) for width in widths])
    narrow, wide, unbounded = jax.jit(jax.vmap(trained))(swept)[:, 2]
    # It learns the rewarded arm, and stops once all ratios have left the band.
    assert 1 / 3 < narrow < wide < 0.75 < unbounded


def test_what_an_objective_needs_follows_its_parts():
    grpo = objectives.algorithm("grpo")
    changed = dataclasses.replace(grpo, mask=masks.second_moment, ratio_reference=ratios.proximal)
    assert changed.requires == {"prox_logprobs"} and changed.needs_policy_stats
    assert [statistic.names for statistic in changed.gathers] == [("second_moment_threshold",)]
    with_penalty = dataclasses.replace(
        objectives.algorithm("reinforce"), penalties=(penalties.KL["k2", "reference"],)
    )
    assert with_penalty.requires == {"ref_logprobs"} and not with_penalty.takes_ratio
    batch = make_batch(grpo)
    with pytest.raises(ValueError, match=r"grpo: m2_threshold of the part second_moment"):
        objectives.policy_loss(dataclasses.replace(changed, label=grpo.label), LOGPROBS, batch)
    with pytest.raises(ValueError, match="tau of the part log_mean_exp has no value"):
        objectives.shape_data(
            dataclasses.replace(
                grpo, advantage=objectives.named(objectives.Advantage)["log_mean_exp"]
            ),
            REWARDS,
            GROUPS,
        )


def test_the_same_file_is_the_same_structure_and_an_edited_one_another(file):
    def structure():
        return jax.tree.structure(objectives.algorithm("reinforce", mask=f"{file}:band"))

    first = structure()
    assert structure() == first
    file.write_text(FILE.replace("<= x.hyper", "< x.hyper"))
    assert structure() != first


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ("gspo", {"weight": "ratio"}, "weight"),
        ("reinforce", {"level": "sequence"}, "level"),
        ("FILE:importance", {"term": "ppo"}, "importance"),
        ("grpo", {"penalty": "token_square,x"}, "penalty"),
        ("grpo", {"mask": "FILE:bond"}, "band"),
        ("grpo", {"mask": "nowhere.py:band"}, "nowhere.py"),
        ("reinforce", {"mask": "FILE:band", "width": -1}, "width"),
        ("reinforce", {"advantage": "FILE:lowered"}, "shift"),
        ("grpo", {"mask": "FILE:clashing"}, "epsilon_low"),
        ("FILE:band", {}, "band"),
    ],
)
def test_refusals(file, row, options, message):
    named = {
        name: value.replace("FILE", str(file)) if isinstance(value, str) else value
        for name, value in options.items()
    }
    with pytest.raises(ValueError, match=message):
        objectives.algorithm(row.replace("FILE", str(file)), **named)


def test_every_row_chooses_masks_and_weights_that_its_term_uses():
    for name, row in table.TABLE.items():
        for variant in row.variants.values():
            fields = {**table.BASE, **row.parts, **variant}
            if "mask" not in fields["term"].uses:
                assert fields["mask"] == masks.unmasked, name
            if "weight" not in fields["term"].uses:
                assert fields["weight"] == weights.one, name


def test_a_name_is_one_part_of_its_kind_and_one_hyperparameter():
    kinds = (objectives.Advantage, objectives.Mask, objectives.Weight, objectives.Term)
    assert {"one_side", "ring"} < set(objectives.named(objectives.Mask))
    declared = {}
    for kind in (*kinds, objectives.Correction, objectives.Filter, objectives.Penalty):
        for part in objectives.named(kind).values():
            assert part.description
            for each in part.hyperparameters:
                assert declared.setdefault(each.name, each) is each, each.name
