import io
import time

import pytest
from rich.console import Console

from grre_jax.reporting import progress
from grre_jax.reporting.progress import TrainingProgress, print_header

SCALARS = {"reward": 0.4123, "clip_fraction": 0.012, "tokens_per_second": 12345.0, "loss": 9.0}


def plain_console():
    return Console(file=io.StringIO(), width=120, force_terminal=False, markup=False)


def live_console():
    return Console(file=io.StringIO(), width=120, force_terminal=True, _environ={"TERM": "xterm"})


def run(console, evaluated=()):
    """Ten steps whose reward is the step itself."""
    with TrainingProgress(10, console=console) as bar:
        for step in range(11):
            if step:
                bar.update(step, SCALARS | {"reward": step})
            if step in evaluated:
                bar.evaluated(step, {"accuracy": step / 100, "greedy_accuracy": 1.0})
    return console.file.getvalue()


def places(text):
    return [tuple(line.split()[:2]) for line in text.splitlines()]


@pytest.mark.parametrize(
    "seconds, steps",
    [
        (30.0, ["eval 0", "train 1", "eval 5", "train 10", "eval 10"]),
        (0.0, [f"{name} {step}" for step in range(11) for name in ("train", "eval")][1:]),
    ],
)
def test_off_a_terminal_lines_come_every_so_many_seconds(monkeypatch, seconds, steps):
    """And each evaluation has its line."""
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    evaluated = (0, 5, 10) if seconds else range(11)
    text = run(plain_console(), evaluated)
    assert [" ".join(place).removesuffix("/10") for place in places(text)] == steps
    assert "\x1b" not in text and "loss" not in text
    for reading in ("reward 1 ", "clip fraction 1.2%", "tokens per second 12,345"):
        assert reading in text.splitlines()[1]
    assert "accuracy 5.0%  greedy accuracy 100.0%" in text


def test_what_ends_early_says_where():
    console = plain_console()
    with pytest.raises(RuntimeError), TrainingProgress(100, console=console) as bar:
        for step in (1, 2, 3):
            bar.update(step, SCALARS)
        raise RuntimeError
    assert [place for _, place in places(console.file.getvalue())] == ["1/100", "3/100"]


def test_on_a_terminal_there_is_a_bar():
    text = run(live_console(), evaluated=(10,))
    for reading in ("\x1b", "train", "10/10", "reward 10", "accuracy 10.0%"):
        assert reading in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_messages_and_phases():
    console = plain_console()
    with TrainingProgress(10, console=console) as bar:
        bar.phase("compiling")
        bar.message("checkpoint at [step] 5")
        bar.update(1)
        bar.phase("sampling")  # of every step: only the terminal shows it
    first, second, *rest = console.file.getvalue().splitlines()
    assert first.split() == ["train", "0/10", "0%", "compiling"]
    assert second == "checkpoint at [step] 5" and len(rest) == 1 and "sampling" not in rest[0]


def test_time_left_is_the_pace_since_the_first_update(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    console = plain_console()
    bar = TrainingProgress(100, start_step=40, console=console)
    now[0] = 160.0  # a minute of compilation is not counted
    bar.update(41)
    now[0] = 164.0
    bar.update(43)
    first, last = console.file.getvalue().splitlines()
    assert "left" not in first and "left 0:01:54" in last and " 43/100" in last


def test_header_lists_fields_in_order_and_leaves_out_none(capsys):
    console = plain_console()
    fields = {"algorithm": "grpo [x]", "devices": None, "learning rate": 5e-4}
    print_header(fields, title="arithmetic", console=console)
    text = console.file.getvalue()
    assert text.startswith("arithmetic\n") and "grpo [x]" in text and "devices" not in text
    assert text.index("algorithm") < text.index("learning rate") < text.index("0.0005")
    with TrainingProgress(10, enabled=False) as bar:
        bar.update(1, SCALARS)
        bar.message("hello")
        bar.phase("compiling")
        bar.evaluated(1, {"accuracy": 1.0})
    assert capsys.readouterr().out == ""
