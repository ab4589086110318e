import pytest

from grre_jax.reporting.panels import (
    PALETTE,
    PANELS,
    further_panels,
    overview_panels,
    run_colours,
    run_style,
)


def test_no_two_of_many_runs_look_the_same():
    assert len({tuple(run_style(i).values()) for i in range(21)}) == 21
    assert list(run_colours(["a", "b"]).values()) == list(PALETTE[:2])


@pytest.mark.parametrize(
    "value, text",
    [
        (0.36, "0.360"),
        (0.0, "0.00"),
        (12.0, "12.0"),
        (345.6, "346"),
        (1.23e-5, "1.2e-05"),
        (12345.0, "1.2e+04"),
    ],
)
def test_end_labels_have_three_digits(value, text):
    assert PANELS[2].written(value) == text


def test_the_panels_are_those_that_the_runs_can_fill():
    known = {"eval": [{"step": 0, "kind": "eval", "accuracy": 0.5, "reward": 0.5}]}
    shaped = {
        "train": [{"step": 1, "kind": "train", "reward": -1.0, "component_a/b": 1.0}],
        "eval": [{"step": 0, "kind": "eval", "reward": -0.5, "component_c": 1.0}],
    }
    both = {"eval": [{"step": 0, "kind": "eval", "accuracy": 0.5, "reward": 2.0}]}
    assert overview_panels([known]) == overview_panels([known, shaped]) == PANELS
    assert further_panels([known]) == ()
    instead = overview_panels([shaped])[1]
    assert (instead.key, instead.kind, instead.percent, instead.interval) == (
        *("reward", "eval"),
        *(False, True),
    )
    assert [(panel.name, panel.kind, panel.key) for panel in further_panels([known, shaped])] == [
        ("component_a%2Fb", "train", "component_a/b"),
        ("component_c", "eval", "component_c"),
    ]
    assert [panel.key for panel in further_panels([both])] == ["reward"]
