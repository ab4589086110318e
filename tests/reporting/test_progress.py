import io
import time

import pytest
from rich.console import Console

from grre_jax.reporting.progress import TrainingProgress, compact_duration, compact_number, make_console, print_header

SCALARS = {"reward": 0.4123, "clip_fraction": 0.012, "tokens_per_second": 12345.0, "loss": 9.0}


def plain_console():
    return Console(file=io.StringIO(), width=120, force_terminal=False)


def live_console(width=120):
    return Console(file=io.StringIO(), width=width, force_terminal=True, _environ={"TERM": "xterm"})


def run(console, steps=10, **options):
    with TrainingProgress(steps, console=console, **options) as progress:
        for step in range(1, steps + 1):
            progress.update(step, SCALARS)
            if step == steps:
                progress.update(step, {"accuracy": 0.832})
    return console.file.getvalue()


def test_off_a_terminal_lines_come_every_so_many_steps():
    lines = run(plain_console(), interval_seconds=1e9, interval_steps=4).splitlines()
    assert [line.split()[1] for line in lines] == ["1/10", "5/10", "9/10", "10/10", "10/10"]
    assert "reward 0.412" in lines[0] and "clip 1.2%" in lines[0] and "12.3k tok/s" in lines[0] and "loss" not in lines[0]
    assert "acc 83.2%" in lines[-1] and "left" not in lines[-1]
    assert not any("\x1b" in line for line in lines)


def test_off_a_terminal_lines_come_every_so_many_seconds():
    assert len(run(plain_console(), interval_seconds=0.0).splitlines()) == 11  # every update, the evaluation's own included
    assert len(run(plain_console(), interval_seconds=1e9).splitlines()) == 3  # first, last, last with the evaluation


def test_on_a_terminal_the_bar_shows_every_reading():
    text = run(live_console())
    assert "\x1b" in text
    for reading in ("train", "10/10", "reward 0.412", "acc 83.2%", "clip 1.2%", "12.3k tok/s"):
        assert reading in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_on_a_narrow_terminal_the_step_stays():
    text = run(live_console(width=44))
    assert "10/10" in text and "reward 0.412" in text and "tok/s" not in text


def test_the_terminal_is_given_back_after_an_error():
    console = live_console()
    with pytest.raises(RuntimeError), TrainingProgress(10, console=console) as progress:
        progress.update(1, SCALARS)
        raise RuntimeError
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")


def test_messages_and_phases(capsys):
    console = plain_console()
    with TrainingProgress(10, console=console) as progress:
        progress.phase("compiling")
        progress.message("checkpoint at [step] 5")
    assert console.file.getvalue() == "checkpoint at [step] 5\n"
    live = live_console()
    with TrainingProgress(10, console=live) as progress:
        progress.phase("compiling")
    assert "compiling" in live.file.getvalue()


def test_disabled_shows_nothing(capsys):
    with TrainingProgress(10, enabled=False) as progress:
        progress.update(1, SCALARS)
        progress.message("hello")
        progress.phase("compiling")
    assert capsys.readouterr().out == ""


def test_time_left_is_the_pace_since_the_first_update(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = TrainingProgress(100, start_step=40, console=plain_console())
    assert progress.seconds_left() is None
    now[0] = 160.0  # a minute of compilation is no pace
    progress.update(41)
    assert progress.seconds_left() is None
    now[0] = 164.0
    progress.update(43)
    assert progress.seconds_left() == pytest.approx(57 * 2.0)
    assert "left 1m54s" in progress.line() and " 43/100" in progress.line()


def test_scalars_may_be_arrays_and_not_finite():
    import jax.numpy as jnp

    console = plain_console()
    with TrainingProgress(1, console=console) as progress:
        progress.update(1, {"reward": jnp.float32(0.5), "tokens_per_second": float("nan"), "clip_fraction": float("nan")})
    assert "reward 0.500" in console.file.getvalue() and "nan" in console.file.getvalue()


def test_header_lists_fields_in_order_and_leaves_out_none():
    console = plain_console()
    print_header({"algorithm": "grpo [x]", "devices": None, "resume": True, "learning rate": 5e-4}, title="arithmetic", console=console)
    text = console.file.getvalue()
    assert text.startswith("arithmetic\n") and "grpo [x]" in text and "devices" not in text
    assert text.index("algorithm") < text.index("resume") < text.index("learning rate") and "0.0005" in text and "yes" in text


@pytest.mark.parametrize(
    "value, text", [(0, "0"), (950, "950"), (999.6, "1k"), (12345, "12.3k"), (4.56e6, "4.56M"), (1.2e9, "1.2B"), (float("nan"), "nan")]
)
def test_compact_number(value, text):
    assert compact_number(value) == text


@pytest.mark.parametrize("seconds, text", [(0.2, "0s"), (8, "8s"), (59.7, "1m00s"), (92, "1m32s"), (7500, "2h05m"), (273600, "3d04h")])
def test_compact_duration(seconds, text):
    assert compact_duration(seconds) == text


def test_a_quiet_console_prints_nothing(capsys):
    for quiet in (True, False):
        make_console(quiet).print("said")
        assert capsys.readouterr().out == ("" if quiet else "said\n")
