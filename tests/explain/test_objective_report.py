"""What is told of an objective agrees with what the objective does."""

import dataclasses

import jax
import numpy as np
import pytest

from grre_jax import objectives
from grre_jax.config import Config, DataConfig, ObjectiveConfig
from grre_jax.explain.objective_report import objective_report
from grre_jax.training.data.regime import Regime
from grre_jax.training.left_out import moves_without_reward_variance

REQUIRED = {
    "dr_grpo": {"constant_length": 3},
    "grpo_two_sided": {"delta": 4.0},
    "dro": {"dro_beta": 0.2},
    "gvpo": {"gvpo_beta": 0.1},
    "r2vpo": {"variance_coef": 0.1},
}
ALL = [objectives.algorithm(name, **REQUIRED.get(name, {})) for name in objectives.algorithms()]
CONFIG = Config("x", regime=Regime(sync_interval=4))


@pytest.mark.parametrize("objective", ALL, ids=lambda objective: objective.name)
def test_what_is_told_of_every_objective(objective):
    report = objective_report(CONFIG, objective, 1)
    assert set(report.sources) == objective.requires
    assert report.formula
    assert report.objective == objective.name
    assert report.hyperparameters == pytest.approx(dict(objective.hyperparameters))
    if report.clipping:
        assert report.ratio
    if report.ratio:
        assert {"old_logprobs", "prox_logprobs"} & objective.requires


def test_ratios_and_masks_are_told_of_the_families_that_have_them():
    by_name = {objective.name: objective_report(CONFIG, objective, 1) for objective in ALL}
    for name in (
        "reinforce",
        "asymre",
        "red_drop",
        "red_weight",
        "rloo",
        "raft",
        "dpo",
        "opmd",
        "opmd_minimal",
    ):
        assert not by_name[name].ratio and not by_name[name].clipping
    for name in (
        "rec_oneside_nois",
        "rec_ring_is",
        "grpo",
        "gspo",
        "cispo",
        "topr",
        "m2po",
        "dppo_kl",
        "sapo",
        "bapo",
        "gepo",
    ):
        assert by_name[name].ratio
        assert "It can act from step 1 on; before, the data is on-policy" in by_name[name].clipping
    assert "of a response, geometric mean over its tokens, to q" in by_name["gspo"].ratio
    assert "to p, the policy at the start of the update" in by_name["tis"].ratio
    assert "never acts: a step is one update" in by_name["tis"].clipping
    assert "correction e^(p - q)" in by_name["tis"].clipping


@pytest.mark.slow  # compiles every kind of advantage
def test_a_group_without_signal_moves_the_policy_where_it_is_said_to():
    # One of each kind of advantage; a penalty's term is not in the advantages.
    kinds = {
        (objective.advantage.name, objective.shaping): objective
        for objective in ALL
        if not objective.penalties
    }
    assert {"group_mean", "asymre", "sign", "positive", "red_drop"} <= {
        advantage for advantage, _ in kinds
    }
    for objective in kinds.values():
        advantages = objectives.advantages(
            objective,
            np.ones(4, np.float32),
            np.zeros(4, int),
            key=jax.random.key(0),
            lengths=np.full(4, 2),
            components={"format": np.arange(4.0)},
        )
        assert bool(np.abs(np.asarray(advantages)).max() > 1e-6) == moves_without_reward_variance(
            objective
        ), objective.name


def test_of_a_loss_of_ones_own_only_what_it_reads_is_told():
    def saturating(x, *, width=0.5):
        return -x.advantages * width * jax.numpy.tanh(jax.numpy.exp(x.log_ratio) / width)

    def plain(x):
        return -x.advantages * x.logprobs

    reads = "not known of a loss of one's own, which reads the log-probs of "
    report = objective_report(CONFIG, objectives.algorithm(saturating), 1)
    assert report.ratio == reads + "q, the policy that sampled"
    assert report.clipping == "not known of a loss of one's own"
    assert report.dropped == ()  # that groups without a signal have no effect is not known either
    assert objective_report(CONFIG, objectives.algorithm(plain), 1).ratio == ""
    assert (
        objective_report(CONFIG, objectives.algorithm(plain, kl_coef=0.1), 1).ratio == ""
    )  # the penalty reads f, the loss does not
    corrected = objective_report(
        CONFIG, objectives.algorithm(saturating, correction="tis"), 1
    ).ratio
    assert corrected.startswith(
        f"{reads}p, the policy at the start of the update; its correction's: of a token, to p"
    )


def test_advantages_of_turns_are_told():
    objective = objectives.algorithm("reinforce", returns="turns", discount=0.9)
    report = objective_report(CONFIG, objective, 1)
    assert report.formula.endswith(
        "r: returns of turns: G_t = sum over s >= t of discount^(s - t) r_s"
    )
    assert report.hyperparameters == {"discount": 0.9} and set(report.sources) == {"turns"}
    assert moves_without_reward_variance(objective)
    assert not any("equal" in line for line in report.dropped)


def test_clipping_acts_where_data_is_stale():
    grpo = objectives.algorithm("grpo")
    assert (
        "It cannot act: all data is on-policy" in objective_report(Config("x"), grpo, None).clipping
    )
    assert "can act from the first step on." in objective_report(CONFIG, grpo, 0).clipping
    stored = dataclasses.replace(CONFIG, data=DataConfig(path="p"))
    assert (
        "from the first step on: the data is another policy's"
        in objective_report(stored, grpo, None).clipping
    )
    assert objective_report(stored, grpo, None).sources["old_logprobs"].endswith("the records of p")


def test_log_probs_that_are_stored_are_told_to_be():
    config = dataclasses.replace(
        CONFIG,
        data=DataConfig(path="p"),
        objective=ObjectiveConfig("tis", {"kl_coef": 0.1}, ("proximal", "reference")),
    )
    report = objective_report(config, objectives.algorithm("tis", kl_coef=0.1), None)
    for name in ("prox_logprobs", "ref_logprobs"):
        assert report.sources[name] == "log-probs that the records of p carry; no forward pass more"
    assert "can act from the first step on" in report.clipping


def test_what_is_left_out():
    def dropped(name, options=(), **data):
        config = dataclasses.replace(CONFIG, data=DataConfig(**data))
        return " | ".join(
            objective_report(config, objectives.algorithm(name, **dict(options)), 1).dropped
        )

    assert "has no effect: its advantages are 0" in dropped("reinforce") and dropped("asymre") == ""
    assert "by its penalties alone (kl_" in dropped("reinforce", {"kl_coef": 0.1})
    assert "by the objective itself" in dropped("dapo")
    assert "negatives in excess" in dropped("red_drop")
    assert "refilled with another question up to 3 times" in dropped("grpo", dynamic_sampling=3)
    assert "all equal, but an expert's (data.drop_zero_variance)" in dropped("chord", mix="p=0.5")
    assert (
        dropped("asymre", path="p", drop_zero_variance=False, max_staleness=2)
        == "stored groups more than 2 versions behind their folder's newest (data.max_staleness)"
    )
