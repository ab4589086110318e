"""The line of a run's first update."""

import re

from grre_jax.training.runtime import stopwatch
from grre_jax.training.runtime.stopwatch import Beginning


def test_the_parts_of_the_first_update_add_up_to_the_whole(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now[0])

    def pass_(seconds):
        now[0] += seconds

    with Beginning() as begun:
        pass_(1.5)
        for name, seconds in (("demonstrations", 2.0), ("evaluation", 3.0)):
            with begun(name):
                pass_(seconds)
        pass_(4.0)  # of which the row says what it was
        line = begun.line({"reward": 1.0, "seconds_sampling": 3.0, "seconds_training": 1.0})
    whole, *parts = map(float, re.findall(r"([\d.]+)s\b", line))
    assert whole == 10.5 and sum(parts[:-1]) == whole
    assert [
        float(re.search(rf"{name} ([\d.]+)s", line)[1])
        for name in ("demonstrations", "preparation", "sampling")
    ] == [2, 1.5, 3]
