import io

from rich.console import Console

from grre_jax.reporting import progress
from grre_jax.reporting.progress import TrainingProgress


def run(terminal=False):
    """What is printed of ten steps whose reward is the step itself."""
    out = io.StringIO()
    options = {"_environ": {"TERM": "xterm"}} if terminal else {}
    console = Console(file=out, width=120, force_terminal=terminal, markup=False, **options)
    with TrainingProgress(10, console=console) as bar:
        bar.phase("compiling")
        for step in range(1, 11):
            bar.update(step, {"reward": step, "clip_fraction": 0.012, "loss": 9.0})
            bar.phase("sampling")  # of every step: only the terminal shows it
        bar.evaluated(10, {"accuracy": 0.05})
    return out.getvalue()


def test_off_a_terminal_lines_come_every_so_many_seconds(monkeypatch):
    """And at the first step, the last and each evaluation."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 1e9)
    lines = run().splitlines()
    places = [" ".join(line.split()[:2]) for line in lines]
    assert places == ["train: compiling", "train 1/10", "train 10/10", "eval 10/10"]
    assert "reward 1  clip fraction 1.2%" in lines[1]
    assert "accuracy 5.0%" in lines[3]
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    assert len(run().splitlines()) == 12


def test_on_a_terminal_there_is_a_bar():
    text = run(terminal=True)
    for reading in ("10/10", "reward 10", "accuracy 5.0%"):
        assert reading in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back
