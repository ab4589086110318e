"""One holder a role: a lock that dies with its process, and a file whose counter tells other
machines that the holder lives.
"""

import json
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

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


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run" / "learner.json"


def test_a_holder_is_alone_until_it_is_killed_or_ends(file):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        assert is_held(file)
        with pytest.raises(UsageError, match=f"process {holder.pid} on") as caught:
            Lease(file, "a learner").__enter__()
        assert caught.value.exit_status == 2
    finally:
        holder.kill()
        holder.communicate()
    assert not read(file)["ended"] and not is_held(file)
    console = Mock()
    with Lease(file, "a learner", console=console, free_running=False) as held:
        held.check()
        assert held.token == 2 and read(file)["free_running"] is False
    assert not console.print.called  # nobody was watched: this machine's lock decides
    assert read(file)["ended"] and not is_held(file)


def elsewhere(file, **fields):
    """A holder on another machine: its lock is not seen here."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "token": 7,
        "owner": "other",
        "pid": 3,
        "host": "far",
        "machine": "far 1",
        "beats": 4,
    }
    write_whole(file, json.dumps(content | fields))


def test_a_holder_elsewhere_is_replaced_once_it_is_silent(file):
    elsewhere(file)
    threading.Timer(0.1, elsewhere, (file,), {"beats": 5}).start()
    with pytest.raises(UsageError, match="process 3 on far"):
        Lease(file, "a learner", seconds=5).__enter__()
    assert read(file)["owner"] == "other" and is_held(file) is None
    console = Mock()
    with Lease(file, "a learner", seconds=0.2, console=console) as held:
        assert held.token == 8 and console.print.call_count == 1


def test_a_holder_that_was_replaced_may_publish_nothing_more(file):
    with Lease(file, "a learner") as held:
        elsewhere(file, token=2)
        with pytest.raises(DataError, match="process 3 on far"):
            held.check()
    assert read(file)["owner"] == "other" and "ended" not in read(file)


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
