"""A run is refused data that its objective cannot learn from."""

import numpy as np
import pytest

from grre_jax import objectives
from grre_jax.config import DataConfig, MeshConfig, SamplerMeshConfig
from grre_jax.errors import DataError, UsageError
from grre_jax.training.data import checks
from grre_jax.training.data.regime import Regime

from ...groups import text_group

REQUIRED = {
    "dr_grpo": {"constant_length": 3},
    "grpo_two_sided": {"delta": 4.0},
    "dro": {"dro_beta": 0.2},
    "gvpo": {"gvpo_beta": 0.1},
    "r2vpo": {"variance_coef": 0.1},
    "grpo_veto": {"veto_low": 0.5, "veto_high": 2.0},
}


@pytest.mark.parametrize("row", objectives.algorithm_table(), ids=lambda row: row.name)
def test_every_objective_takes_or_refuses_data_without_behaviour_log_probs(make_group, row):
    objective = objectives.algorithm(row.name, **REQUIRED.get(row.name, {}))
    without, with_logprobs = text_group(0), make_group(0, behavior_logprobs=-np.ones(7))
    checks.check_group(objective, 1.0, with_logprobs, "somewhere")
    if "old_logprobs" not in objective.requires:
        checks.check_group(objective, 1.0, without, "somewhere")
        return
    with pytest.raises(DataError) as caught:
        checks.check_group(objective, 1.0, without, "somewhere")
    message = str(caught.value)
    assert "group g0 of somewhere" in message and row.name in message
    offered = message.split("(")[1].split(")")[0].split(", ")
    assert {"reinforce", "asymre", "red_drop", "red_weight"} <= set(offered)
    assert all("old_logprobs" not in objectives.algorithm(name).requires for name in offered)


def test_a_ratio_compares_like_with_like(make_group):
    grpo = objectives.algorithm("grpo")
    full = -np.full(7, 0.5, np.float32)
    cut = {"top_p": 0.9, "top_k": 4, "min_p": 0.1}

    def check(objective=grpo, **fields):
        checks.check_group(
            objective, 1.0, make_group(0, **{"behavior_logprobs": full} | fields), "somewhere"
        )

    # Behaviour log-probs are over the full vocabulary whatever the data was drawn with.
    check(**cut, sampling_logprobs=full + 0.3)
    check(sampling_logprobs=full - 0.01)  # rounding
    with pytest.raises(DataError, match="top_k 4, top_p 0.9, min_p 0.1"):
        check(**cut, sampling_logprobs=full - 0.3)
    # An observation's mean nothing.
    check(sampling_logprobs=full - 0.3 * (np.arange(7) == 0), mask=[0, 1, 1, 1, 1, 1, 1])
    for temperature in (0.7, 0):
        with pytest.raises(DataError, match="sampling.temperature"):
            check(temperature=temperature)
    check(objectives.algorithm("reinforce"), temperature=0.7, sampling_logprobs=full - 0.3)


def test_an_experts_groups_need_no_log_probs_where_the_objective_asks_for_experts():
    chord, grpo = objectives.algorithm("chord"), objectives.algorithm("grpo")
    whole, half = text_group(0, is_expert=[1, 1]), text_group(0, is_expert=[1, 0])
    checks.check_group(chord, 1.0, whole, "somewhere")
    for objective, group in ((chord, half), (grpo, whole)):
        with pytest.raises(DataError, match="has no behaviour log-probs"):
            checks.check_group(objective, 1.0, group, "somewhere")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"regime": Regime(replay_ratio=0.5)}, r"regime\.replay_ratio = 0\.5"),
        ({"data": DataConfig(dynamic_sampling=1)}, r"data\.dynamic_sampling = 1"),
        ({"data": DataConfig(mix="there=0.5")}, r"data\.mix = there=0\.5"),
    ],
)
def test_free_running_is_refused_what_needs_known_versions(make_config, fields, message):
    with pytest.raises(UsageError, match=message):
        checks.check_roles(make_config("run", **fields), True)
    checks.check_roles(make_config("run", regime=Regime(reuse=2)), True)


def test_a_learner_and_explorers_have_no_mesh_for_the_other(make_config):
    mesh = MeshConfig(sampler=SamplerMeshConfig(2))
    with pytest.raises(UsageError, match="mesh.sampler.data"):
        checks.check_roles(make_config("run", mesh=mesh), False)
