import io
import time

import pytest
from rich.console import Console

from grre_jax.reporting import progress
from grre_jax.reporting.progress import (
    TrainingProgress,
    compact_duration,
    compact_number,
    print_header,
)

SCALARS = {"reward": 0.4123, "clip_fraction": 0.012, "tokens_per_second": 12345.0, "loss": 9.0}


def plain_console():
    return Console(file=io.StringIO(), width=120, force_terminal=False)


def live_console(width=120):
    return Console(file=io.StringIO(), width=width, force_terminal=True, _environ={"TERM": "xterm"})


def run(console, steps=10, evaluated=(), **options):
    """Steps whose reward is the step itself, evaluations whose accuracy is the step as a
    percentage.
    """
    with TrainingProgress(steps, console=console, **options) as bar:
        for step in range(steps + 1):
            if step:
                bar.update(step, SCALARS | {"reward": step})
            if step in evaluated:
                bar.evaluated(step, {"accuracy": step / 100, "accuracy_low": 0.0})
    return console.file.getvalue()


def test_off_a_terminal_lines_come_every_so_many_steps(monkeypatch):
    monkeypatch.setattr(progress, "LINES", 3)
    lines = run(plain_console()).splitlines()
    assert [line.split()[1] for line in lines] == ["1/10", "4/10", "8/10", "10/10"]
    assert "reward 1.000" in lines[0]
    assert "clip 1.2%" in lines[0]
    assert "12.3k tok/s" in lines[0]
    assert "loss" not in lines[0]
    assert "left" not in lines[-1]
    assert not any("\x1b" in line for line in lines)


def test_off_a_terminal_each_line_is_printed_once_with_the_figures_of_its_step():
    """Sixty steps with four evaluations: about ten lines of training, and each evaluation's own."""
    lines = [
        line.split() for line in run(plain_console(), 60, evaluated=(0, 20, 40, 60)).splitlines()
    ]
    assert [words[1] for words in lines if words[0] == "train"] == [
        f"{step}/60" for step in (1, *range(6, 61, 6))
    ]
    assert [words[1] for words in lines if words[0] == "eval"] == [
        "0/60",
        "20/60",
        "40/60",
        "60/60",
    ]
    for words in lines:
        step = int(words[1].split("/")[0])
        if words[0] == "eval":
            assert words[3:] == ["acc", f"{step}.0%"]
        else:
            assert words[3:5] == ["reward", f"{step}.000"] and "acc" not in words


@pytest.mark.parametrize("seconds, lines", [(0.0, 10), (1e9, 2)])  # the first and the last
def test_off_a_terminal_lines_come_every_so_many_seconds(monkeypatch, seconds, lines):
    monkeypatch.setattr(progress, "LINES", 1)
    monkeypatch.setattr(progress, "MOST_SECONDS", seconds)
    assert len(run(plain_console()).splitlines()) == lines


def test_what_ends_early_says_where():
    console = plain_console()
    with pytest.raises(RuntimeError), TrainingProgress(100, console=console) as bar:
        for step in (1, 2, 3):
            bar.update(step, SCALARS)
        raise RuntimeError
    assert [line.split()[1] for line in console.file.getvalue().splitlines()] == ["1/100", "3/100"]


def test_on_a_terminal_the_bar_shows_every_reading():
    text = run(live_console(), evaluated=(10,))
    assert "\x1b" in text
    for reading in (
        "train",
        "10/10",
        "reward 10.000",
        "eval acc 10.0%",
        "clip 1.2%",
        "12.3k tok/s",
    ):
        assert reading in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_messages_and_phases(capsys):
    console = plain_console()
    with TrainingProgress(10, console=console) as bar:
        bar.phase("compiling")
        bar.message("checkpoint at [step] 5")
        bar.update(1)
        bar.phase("sampling")  # of every step: only the terminal shows it
    first, *rest = console.file.getvalue().splitlines()
    assert first.split() == ["train", "0/10", "0%", "compiling"]
    assert rest[0] == "checkpoint at [step] 5" and len(rest) == 2 and "sampling" not in rest[1]
    live = live_console()
    with TrainingProgress(10, console=live) as bar:
        bar.phase("compiling")
    assert "compiling" in live.file.getvalue()


def test_an_evaluation_shows_both_accuracies():
    both = {"greedy_accuracy": 1.0, "accuracy": 0.36}
    for console in (plain_console(), live_console()):
        with TrainingProgress(10, console=console) as bar:
            bar.evaluated(0, both)
        assert "acc 36.0%  greedy 100.0%" in console.file.getvalue()


def test_disabled_shows_nothing(capsys):
    with TrainingProgress(10, enabled=False) as bar:
        bar.update(1, SCALARS)
        bar.message("hello")
        bar.phase("compiling")
        bar.evaluated(1, {"accuracy": 1.0})
    assert capsys.readouterr().out == ""


def test_time_left_is_the_pace_since_the_first_update(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = plain_console()
    monkeypatch.setattr(progress, "LINES", 60)
    bar = TrainingProgress(100, start_step=40, console=console)
    assert bar.seconds_left() is None
    bar.evaluated(40, {"accuracy": 0.5})
    now[0] = 160.0  # a minute of compilation is no pace
    bar.update(41)
    assert bar.seconds_left() is None
    now[0] = 164.0
    bar.update(43)
    assert bar.seconds_left() == pytest.approx(57 * 2.0)
    line = console.file.getvalue().splitlines()[-1]
    assert "left 1m54s" in line and " 43/100" in line


def test_scalars_may_be_arrays_and_not_finite():
    import jax.numpy as jnp

    console = plain_console()
    with TrainingProgress(1, console=console) as bar:
        bar.update(
            1,
            {
                "reward": jnp.float32(0.5),
                "tokens_per_second": float("nan"),
                "clip_fraction": float("nan"),
            },
        )
    assert "reward 0.500" in console.file.getvalue() and "nan" in console.file.getvalue()


def test_header_lists_fields_in_order_and_leaves_out_none():
    console = plain_console()
    print_header(
        {"algorithm": "grpo [x]", "devices": None, "resume": True, "learning rate": 5e-4},
        title="arithmetic",
        console=console,
    )
    text = console.file.getvalue()
    assert text.startswith("arithmetic\n") and "grpo [x]" in text and "devices" not in text
    assert text.index("algorithm") < text.index("resume") < text.index("learning rate")
    assert "0.0005" in text


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1k"),
        (12345, "12.3k"),
        (4.56e6, "4.56M"),
        (1.2e9, "1.2B"),
        (float("nan"), "nan"),
    ],
)
def test_compact_number(value, text):
    assert compact_number(value) == text


@pytest.mark.parametrize(
    "seconds, text",
    [(0.2, "0s"), (8, "8s"), (59.7, "1m00s"), (92, "1m32s"), (7500, "2h05m"), (273600, "3d04h")],
)
def test_compact_duration(seconds, text):
    assert compact_duration(seconds) == text
