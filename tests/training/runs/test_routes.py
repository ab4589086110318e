"""A run of a mixture of experts whose steps replay the experts that sampled the data."""

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.training import loop

from ...run_processes import log, quiet

pytestmark = pytest.mark.usefixtures("no_reports")

MIXTURE = (
    "--model.num_layers 1 --model.num_experts 4 --model.experts_per_token 2"
    " --model.intermediate_size 8 --warm_start.steps 0 --evaluation.questions 0"
    " --training.steps 4"
    " --training.replay_routes true --training.router_balance 0.01"
)


def test_a_run_replays_what_it_sampled(make_config, tmp_path):
    config = make_config(tmp_path / "own", f"{MIXTURE} --sampling.record_routes true")
    rows = log(loop.train(config, console=quiet()))
    # New weights every 3 steps: the first and the last step's data is of the policy itself.
    gaps = [row["router_gap"] for row in rows]
    assert gaps[0] == gaps[3] == 0 and 0 < gaps[2] < 1
    assert all(1.5 < row["router_imbalance"] < 4 for row in rows)
    for group in rollouts.read(tmp_path / "own" / "rollouts"):
        tokens = len(group.prompt_tokens) + len(group.tokens)
        routes = group.routes.reshape(tokens, 1, 2)
        ends = len(group.prompt_tokens) + group.offsets[1:] - 1
        known = np.isin(np.arange(tokens), ends, invert=True)
        assert (routes[known] < 4).all() and (routes[ends] == 65535).all()
