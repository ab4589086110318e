"""The arithmetic of a whole step, on made-up parts; the curve against its own formulas."""

import dataclasses
from types import SimpleNamespace

import pytest

from grre_jax.config import Config, SamplingConfig, TrainingConfig
from grre_jax.planner import sampler_curve
from grre_jax.planner.hardware import chips as hardware_chips
from grre_jax.planner.hardware import interconnect
from grre_jax.planner.program import roofline
from grre_jax.planner.program.costs import Cost
from grre_jax.planner.rl_step import Part, RLStep, VersionCalls, rl_step
from grre_jax.sampling.distributions.distribution import idle_scopes
from grre_jax.sampling.params import SamplingParams
from grre_jax.training.data.regime import Regime


def step(interval, ahead, sampling=6.0, training=2.0):
    parts = (Part("decode", sampling, "HBM"), Part("training", training, "FLOPs"))
    return RLStep(parts, interval, ahead, 4, 1000, 3e12, 1e12)


@pytest.mark.parametrize(
    ("interval", "ahead", "sampling", "training", "overlapped"),
    [
        (1, 0, 6, 2, 8),  # on-policy: in turn even on two slices
        (1, 10, 6, 2, 6),  # fully ahead: the slower side
        (1, 10, 2, 6, 6),
        (20, 0, 6, 2, 8),
        (20, 10, 6, 2, 7),  # half of the training waits: (max(20, 120) + 20) / 20
        (20, 10, 1, 2, 2),  # sampling ends within the ten steps
        (20, 40, 6, 2, 6),
    ],
)
def test_a_step_overlaps_as_far_as_the_regime_samples_ahead(
    interval, ahead, sampling, training, overlapped
):
    found = step(interval, ahead, sampling, training)
    assert found.in_turn == sampling + training
    assert found.overlapped == pytest.approx(overlapped)


def test_a_step_costs_its_chips_for_its_seconds():
    in_turn = step(1, 1).summary()
    assert in_turn == {
        "seconds": 8.0,
        "chip_seconds": 32.0,
        "tokens_per_second_per_chip": 1000 / 32,
        "mfu": pytest.approx(3 / 32),
    }
    overlapped = step(1, 1).summary(overlapped=True)
    assert (overlapped["seconds"], overlapped["chip_seconds"]) == (6.0, 48.0)
    apart = dataclasses.replace(step(1, 1), apart=True).summary(overlapped=True)
    assert (apart["seconds"], apart["chip_seconds"]) == (6.0, 24.0)  # on the same four chips
    assert "overlapped" in step(1, 1).as_dict() and "overlapped" not in step(20, 0).as_dict()


def test_a_step_has_its_share_of_the_calls_it_is_in():
    """Two calls for four steps: half a call a step, and a quarter of a gathering of weights."""
    sampler, trainer = Cost(), Cost()
    sampler.phases.update(
        {
            ("weights", "interconnect"): 4.0,
            ("prefill", "products"): 2.0,
            ("decode", "memory"): 6.0,
            ("decode", "products"): 1.0,
            ("left at the end", "interconnect"): 1.0,
        }
    )
    trainer.bound.update({"products": 3.0, "kernels": 1.0, "interconnect": 3.5})
    found = rl_step(
        VersionCalls(positions=8, calls=2, steps=4, ahead=0),
        SimpleNamespace(cost=sampler, model_flops=4.0),
        SimpleNamespace(cost=trainer, model_flops=8.0, tokens=10),
        chips=2,
        peak_flops=1.0,
        verification=0.5,
    )
    assert found.parts == (
        Part("weights", 1.0, "links"),
        Part("prefill", 1.0, "FLOPs"),
        Part("decode", 4.0, "HBM"),
        Part("verification", 0.5, "host"),
        Part("training", 7.5, "FLOPs"),
    )
    assert (found.model_flops, found.tokens) == (10.0, 10) and found.sampling == 6.5


@pytest.mark.parametrize(
    ("regime", "calls", "expected"),
    [
        (Regime(), 0, VersionCalls(32, 1, 1, 0)),
        (Regime(sync_interval=20), 0, VersionCalls(640, 1, 20, 0)),
        (Regime(sync_interval=20), 100, VersionCalls(640, 7, 20, 0)),
        (Regime(sync_offset=10), 0, VersionCalls(32, 1, 1, 10)),
        (Regime(reuse=4), 0, VersionCalls(32, 1, 4, 0)),
        (Regime(offline=True), 0, VersionCalls(3200, 2, 100, 0)),
    ],
)
def test_the_calls_of_a_version(regime, calls, expected):
    config = Config(
        "x",
        regime=regime,
        sampling=SamplingConfig(prompts_per_call=calls),
        training=TrainingConfig(steps=100, prompts_per_step=32),
    )
    assert VersionCalls.of(config) == expected


def test_the_best_point_is_the_fastest_that_fits():
    point = sampler_curve.Point(8, 1.0, 8.0, 1.0, True, "HBM")
    wider = dataclasses.replace(point, rows=16, tokens_per_second_per_chip=12.0)
    over = dataclasses.replace(point, rows=32, tokens_per_second_per_chip=20.0, fits=False)
    assert sampler_curve.best([point, wider, over]) is wider
    assert sampler_curve.best([over]) is over


HLO = """
HloModule m, is_scheduled=true

%dear (x: f32[1024]) -> f32[1024] {
  %x = f32[1024]{0} parameter(0)
  ROOT %negate = f32[1024]{0} negate(%x)
}

%cheap (y: f32[1024]) -> f32[1024] {
  ROOT %y = f32[1024]{0} parameter(0)
}

ENTRY %main (p: pred[], a: f32[1024]) -> f32[1024] {
  %p = pred[] parameter(0)
  %a = f32[1024]{0} parameter(1)
  ROOT %c = f32[1024]{0} conditional(%p, %a, %a), true_computation=%dear, false_computation=%cheap, metadata={op_name="jit(advance)/truncation/cond"}
}
"""


@pytest.mark.parametrize(
    ("params", "moved"),
    [({}, 0), ({"top_k": 5}, 8192), ({"temperature": 0.0}, 8192), ({"temperature": 0.5}, 0)],
)
def test_a_truncation_that_is_off_costs_nothing(params, moved):
    torus = interconnect.Torus(hardware_chips.chip("v5e"), (1, 1), ((0, 0),))
    idle = idle_scopes(SamplingParams(**params))
    assert roofline.analyse(HLO, torus, idle).hbm_bytes == moved
