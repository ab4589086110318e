"""A run whose disk fills up, at moments all over it: one sentence that names file and cause, and
with room again it ends as the run that had room all the time.

The disk is a tmpfs in a mount namespace of the child's own, which plays all the moments in one
process.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLAY = """
import contextlib, os, subprocess, sys
from pathlib import Path
from grre_jax.cli import entry as cli
from grre_jax import rollouts
from tests.run_processes import CONFIG, bits, log

home, moments = Path(sys.argv[1]), int(sys.argv[2])
disk, said = home / "disk", home / "said"
(home / "small.py").write_text(CONFIG)
SETTINGS = ("--training.steps", "6", "--regime.sync-interval", "2", "--checkpoint.every", "2", "--warm-start.steps", "2", "--logging.tensorboard", "true")


def mount(size, option=""):
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{option}size={size}k", "none", str(disk)], check=True)


def train(folder, *more):
    # all that reaches the terminal, C++'s too
    sys.stderr.flush()
    kept = os.dup(2)
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            with contextlib.redirect_stdout(open(os.devnull, "w")):
                status = cli.main(["train", str(home / "small.py"), "--run-dir", str(folder), *SETTINGS, *more])
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
    return status, said.read_text()


def end(folder):
    return log(folder), bits(folder), list(rollouts.read(folder / "rollouts")), rollouts.verify(folder / "rollouts").ok


disk.mkdir()
mount(65536)
status, text = train(disk / "run")
assert status == 0, text
expected = end(disk / "run")
usage = os.statvfs(disk)
used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize // 1024
subprocess.run(["umount", "-l", str(disk)], check=True)
for moment in range(moments):
    size = used * (2 * moment + 1) // (2 * moments)
    mount(size)
    status, text = train(disk / "run")
    errors = [line for line in text.splitlines() if line.startswith("grre: ")]
    if status:
        assert status == 1 and len(errors) == 1 and "Traceback" not in text, text
        assert str(disk) in errors[0] and "no space" in errors[0].lower(), text
        mount(65536, "remount,")
        begun = (disk / "run" / "config.json").is_file()
        again, more = train(disk / "run", *(["--resume"] if begun else []))
        assert again == 0, more
        assert "Traceback" not in more, more
    assert end(disk / "run") == expected, (moment, size)
    print(f"{size} of {used} KiB: status {status}", *errors, flush=True)
    subprocess.run(["umount", "-l", str(disk)], check=True)
"""


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_a_run_in_one_sentence_and_loses_nothing(tmp_path):
    if subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)], capture_output=True
    ).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs of his own")
    words = ["unshare", "-rm", sys.executable, "-c", PLAY, str(tmp_path), "20"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    failed = [line for line in done.stdout.splitlines() if "status 1" in line]
    assert len(failed) >= 19
