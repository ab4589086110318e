"""One holder a role: a lock that dies with its process, and a file whose counter tells other
machines that the holder lives.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.storage.files import replace as write_whole
from grre_jax.training.actors.lease import Lease, is_held, read

HOLDER = """
import signal, sys
from pathlib import Path
from grre_jax.training.actors.lease import Lease
with Lease(Path(sys.argv[1]), "a learner"):
    print("held", flush=True)
    signal.pause()
"""


class Said:
    def __init__(self):
        self.lines = []

    def print(self, line, **_):
        self.lines.append(line)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run" / "learner.json"


def test_a_second_holder_is_refused_and_told_who_the_first_is(file):
    with Lease(file, "a learner", free_running=False) as first:
        assert first.token == 1 and read(file)["free_running"] is False and is_held(file)
        with pytest.raises(UsageError, match=f"process {os.getpid()} on") as caught:
            Lease(file, "a learner").__enter__()
        assert caught.value.exit_status == 2
        first.check()
    assert read(file)["ended"] and not is_held(file)
    with Lease(file, "a learner") as second:
        assert second.token == 2 and not read(file)["ended"]


def test_a_killed_holder_is_replaced_at_once(file):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        assert is_held(file)
        with pytest.raises(UsageError, match=f"process {holder.pid} on"):
            Lease(file, "a learner").__enter__()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert not read(file)["ended"] and not is_held(file)
        said = Said()
        with Lease(file, "a learner", console=said) as held:
            assert (
                held.token == 2 and not said.lines
            )  # nobody was watched: this machine's lock decides
    finally:
        holder.kill()
        holder.communicate()


def elsewhere(file, **fields):
    """A holder on another machine: its lock is not seen here."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "token": 7,
        "owner": "other",
        "pid": 3,
        "host": "far",
        "machine": "far 1",
        "started": "2026",
        "beats": 4,
        "ended": False,
    }
    write_whole(file, json.dumps(content | fields))


def test_a_silent_holder_elsewhere_is_replaced_after_its_time(file):
    elsewhere(file)
    assert not is_held(file)  # by a process of this machine
    said = Said()
    with Lease(file, "a learner", seconds=0.2, console=said) as held:
        assert held.token == 8 and len(said.lines) == 1


def test_a_holder_elsewhere_that_lives_is_not(file):
    elsewhere(file)
    threading.Timer(0.1, elsewhere, (file,), {"beats": 5}).start()
    with pytest.raises(UsageError, match="process 3 on far"):
        Lease(file, "a learner", seconds=5).__enter__()
    assert read(file)["owner"] == "other"


def test_a_holder_that_was_replaced_may_publish_nothing_more(file):
    with Lease(file, "a learner") as held:
        elsewhere(file, token=2)
        with pytest.raises(DataError, match="process 3 on far"):
            held.check()
        with pytest.raises(DataError, match="took over"):
            held.check()
    assert (
        read(file)["owner"] == "other" and not read(file)["ended"]
    )  # and it does not mark the other as ended


def test_a_folder_that_is_gone_is_noticed(file):
    with Lease(file, "a learner") as held:
        whole = file.read_text()
        file.write_text("{")  # what cannot be read for a moment says nothing
        held.check()
        file.write_text(whole)
        file.unlink()
        with pytest.raises(DataError, match=r"learner\.json was removed"):
            held.check()


def test_beats_go_on_and_carry_what_the_holder_says(file):
    with Lease(file, "a learner", seconds=0.09) as held:
        held.update(step=5)
        while read(file)["beats"] < 2:
            time.sleep(0.01)
        assert read(file)["step"] == 5
