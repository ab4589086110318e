"""An error of the operating system is one sentence with the file and the cause."""

import errno
import os
import resource
import subprocess
import sys

import pytest

from grre_jax import reporting
from grre_jax.cli import entry
from grre_jax.reporting.metrics import MetricsLog


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_file_and_cause_are_named(number, monkeypatch, capsys):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number), "/runs/a/metrics.jsonl")

    monkeypatch.setattr(reporting, "report", fails)
    assert entry.main(["report", "a"]) == 1
    assert f"{os.strerror(number)}: '/runs/a/metrics.jsonl'" in capsys.readouterr().err


def test_programs_own_errors_keep_their_traceback(monkeypatch):
    def fails(*_, **__):
        raise ValueError("shapes disagree")

    monkeypatch.setattr(reporting, "report", fails)
    with pytest.raises(ValueError, match="shapes disagree"):
        entry.main(["report", "a"])


@pytest.fixture
def small_files():
    """No file may grow beyond 4 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_log_that_cannot_grow_leaves_nothing_open(tmp_path, small_files):
    log = MetricsLog(tmp_path)
    log.write("train", 1, {"loss": 1.0})
    small_files()
    with pytest.raises(OSError) as caught:
        for step in range(2, 200):
            log.write("train", step, {"loss": 1.0})
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(OSError):
        log.close()
    log.close()


def test_a_reader_that_goes_ends_a_command_in_silence():
    words = [sys.executable, "-m", "grre_jax", "algorithms"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 1
