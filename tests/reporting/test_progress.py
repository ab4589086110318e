import io

import pytest
from rich.console import Console

from grre_jax.reporting import progress
from grre_jax.reporting.progress import TrainingProgress

SCALARS = {"reward": 0.4123, "clip_fraction": 0.012, "tokens_per_second": 12345.0, "loss": 9.0}


def run(steps=10, evaluated=(), terminal=False):
    """What is printed of steps whose reward is the step itself."""
    out = io.StringIO()
    options = {"_environ": {"TERM": "xterm"}} if terminal else {}
    console = Console(file=out, width=120, force_terminal=terminal, markup=False, **options)
    with TrainingProgress(10, console=console) as bar:
        for step in range(steps + 1):
            if step:
                bar.update(step, SCALARS | {"reward": step})
            if step in evaluated:
                bar.evaluated(step, {"accuracy": step / 100, "greedy_accuracy": 1.0})
    return out.getvalue()


@pytest.mark.parametrize(
    "seconds, evaluated, places",
    [
        (30.0, (0, 5, 10), ["eval 0/10", "train 1/10", "eval 5/10", "train 10/10", "eval 10/10"]),
        (0.0, (), [f"train {step}/10" for step in range(1, 11)]),
    ],
)
def test_off_a_terminal_lines_come_every_so_many_seconds(monkeypatch, seconds, evaluated, places):
    """And each evaluation has its line."""
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    text = run(evaluated=evaluated)
    assert [" ".join(line.split()[:2]) for line in text.splitlines()] == places
    assert "\x1b" not in text and "loss" not in text
    assert "reward 1 " in text and "clip fraction 1.2%" in text
    assert ("accuracy 5.0%  greedy accuracy 100.0%" in text) == (5 in evaluated)


def test_on_a_terminal_there_is_a_bar():
    text = run(evaluated=(10,), terminal=True)
    for reading in ("\x1b", "10/10", "reward 10", "accuracy 10.0%"):
        assert reading in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_messages_and_phases(capsys):
    out = io.StringIO()
    for options in ({"console": Console(file=out, width=120)}, {"enabled": False}):
        with TrainingProgress(10, **options) as bar:
            bar.phase("compiling")
            bar.message("checkpoint at step 5")
            bar.update(1)
            bar.phase("sampling")  # of every step: only the terminal shows it
    first, second, *rest = out.getvalue().splitlines()
    assert first.split() == ["train", "0/10", "0%", "compiling"]
    assert second == "checkpoint at step 5" and len(rest) == 1 and "sampling" not in rest[0]
    assert capsys.readouterr().out == ""
