"""Whole runs: what one leaves behind, and that one which was interrupted anywhere and resumed is
the run that was not.

Interruptions here are exceptions and signals at chosen points within this process;
test_kill_and_resume.py kills processes.
"""

import functools
import os
import shutil
import signal
import sys

import jax
import numpy as np
import pytest

from grre_jax import models, rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks import CharTokenizer
from grre_jax.training import build, loop, policies
from grre_jax.training.checkpoints import Checkpoints, digest, listed
from grre_jax.training.metrics import Diverged
from grre_jax.training.stopping import Stopped

from ..groups import text_group
from ..run_processes import bits, contents, first_state, log, quiet

pytestmark = pytest.mark.usefixtures("no_reports")


class Crash(BaseException):
    """Ends a run where it stands; nothing in the code may catch it."""


def train(config, **options):
    return loop.train(config, console=quiet(), **options)


def test_what_a_run_leaves(tiny_run):
    found = [(row["kind"], row["step"]) for row in log(tiny_run)]
    warm, trained = ([(kind, n) for n in range(1, 9)] for kind in ("warm_start", "train"))
    assert found == [*warm[:6], ("eval", 0), *trained[:4], ("eval", 4), *trained[4:], ("eval", 8)]
    rows = [row for row in log(tiny_run) if row["kind"] == "train"]
    assert [row["staleness"] for row in rows] == [0, 1, 2, 0, 1, 2, 0, 1]
    reader = rollouts.read(tiny_run / "rollouts")
    # A data set a call.
    sampled = [(entry.policy_version, entry.groups) for entry in reader.datasets]
    assert sampled == [(0, 4)] * 3 + [(3, 4)] * 3 + [(6, 4)] * 2
    assert [group.position for group in reader] == list(range(32))
    for step, row in enumerate(rows):
        groups = [reader[4 * step + place] for place in range(4)]
        assert row["reward"] == pytest.approx(np.mean([g.rewards for g in groups]))
        assert row["tokens"] == sum(len(g.tokens) for g in groups)
    # While the policy that sampled is the one that trains, the two sets of log-probs are the same.
    assert abs(rows[0]["kl_behavior_k1"]) < 1e-6 and rows[0]["clip_fraction"] == 0
    assert len(rollouts.read(tiny_run / "warm_start")) == 32
    assert listed(tiny_run / "checkpoints") == [0, 6, 8]
    assert (tiny_run / "plots" / "overview.png").is_file()


def test_data_sets_name_the_parameters_that_sampled_them(tiny_run):
    """Policies of the schedule that were never saved too."""
    datasets = rollouts.read(tiny_run / "rollouts").datasets
    digests = {entry.policy_version: entry.metadata["weights"] for entry in datasets}
    assert len(set(digests.values())) == len(digests) == 3
    config = policies.load_config(tiny_run)
    parts = build.build(config)
    like = first_state(parts)
    checkpoints = Checkpoints(tiny_run / "checkpoints", read_only=True)
    for step in (0, 6):
        params = checkpoints.restore_params(like.params, step)
        assert digest(parts.full(params)) == digests[step]


@pytest.mark.parametrize(
    "words, field",
    [
        ("--logging.wandb_project p", "wandb_project"),
        ("--sampling.max_new_tokens 1", "max_new_tokens"),
        ("--mesh.data 3", "mesh"),
    ],
)
def test_what_is_wrong_with_a_request_leaves_all_as_it_was(
    copy, make_config, tmp_path, monkeypatch, words, field
):
    """No folder of a new run, and the old one that was to be replaced."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    before = contents(copy)
    for folder, overwrite in ((tmp_path / "run", False), (copy, True)):
        with pytest.raises((UsageError, DataError), match=field):
            train(make_config(folder, words), overwrite=overwrite)
    assert not (tmp_path / "run").exists() and contents(copy) == before


def test_a_loss_that_is_not_finite_ends_the_run_by_its_name_and_saves_nothing_of_it(
    make_config, tmp_path
):
    """On-policy the policy that it leaves would have to sample before the step's metrics are
    read.
    """
    own = tmp_path / "own.py"
    own.write_text("def lost(x):\n    return x.advantages * x.logprobs * float('nan')\n")
    words = f"--regime.sync_interval 1 --objective.name {own}:lost --warm-start.steps 0"
    with pytest.raises(Diverged, match="train step 1"):
        train(make_config(tmp_path / "run", words))
    assert [row["step"] for row in log(tmp_path / "run") if row["kind"] == "train"] == [1]
    assert listed(tmp_path / "run" / "checkpoints") == [0]


def test_learning_from_stored_text(make_config, tmp_path):
    """Imitating the right answers of imported text makes them likely."""
    # The right answer is always 7: something to learn from a few steps.
    groups = [
        text_group(n, ["7$", "2$", "7$", "5$"], [1, 0, 1, 0], prompt=f"{n % 10}+{7 * n % 10}>")
        for n in range(16)
    ]
    contains = {"contains": ["sevens/test"]}
    rollouts.write(tmp_path / "store", groups, writer="import", metadata=contains)
    words = f"--data.path {tmp_path / 'store'} --objective.name reinforce"
    words += " --warm-start.steps 0 --evaluation.questions 0 --checkpoint.export true"
    run = train(make_config(tmp_path / "run", words))
    assert not (run / "rollouts").exists()
    logprobs = jax.jit(functools.partial(models.token_logprobs, models.load(run / "model")))
    tokens = np.array([CharTokenizer().encode_prompt("3+4>7")])
    assert logprobs(tokens)[0, -1] > np.log(0.4)  # half of the answers are right
    # What it has seen goes with the model, and keeps the next run from being tested on it.
    following = make_config(tmp_path / "next", f"--model.path {run / 'model'}")
    assert build.model_contents(following) == {"sevens/test"}


def interrupt(patch, version, act):
    """Makes the next run act once it has sealed groups of a policy version, -1 for demonstrations;
    what it has saved is on disk by then.
    """
    save = Checkpoints.save
    write = rollouts.write

    def save_and_wait(self, state, **options):
        save(self, state, **options | {"wait": True})

    def write_and_act(*given, **options):
        name = write(*given, **options)
        if options.get("policy_version", -1) == version:
            act()
        return name

    patch.setattr(Checkpoints, "save", save_and_wait)
    patch.setattr(rollouts, "write", write_and_act)


def crash():
    raise Crash


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_was_interrupted_and_resumed_is_the_run_that_was_not(
    tiny_run, make_config, tmp_path, monkeypatch
):
    """In the warm start, which has nothing to save yet; and by the seals of versions 3 and 6, right
    after the checkpoints of these steps, whose rows must be on disk by then.
    """
    run = tmp_path / "run"
    config = make_config(run)
    sealed = {}
    # A run that does not listen must not take the tests with it.
    default = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        for version, act, error, saved in (
            (-1, terminate, Stopped, []),
            (3, crash, Crash, [3]),
            (6, terminate, Stopped, [6]),
        ):
            with monkeypatch.context() as patch, pytest.raises(error) as caught:
                interrupt(patch, version, act)
                train(config, resume=run.exists())
            assert getattr(caught.value, "exit_status", 143) == 143
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            trained = [row["step"] for row in log(run) if row["kind"] == "train"]
            assert listed(run / "checkpoints")[-1:] == trained[-1:] == saved
            assert all(path.read_bytes() == content for path, content in sealed.items())
            sealed = {path: path.read_bytes() for path in run.glob("rollouts/*/*")}
    finally:
        signal.signal(signal.SIGTERM, default)
    train(config, resume=True)
    assert log(run) == log(tiny_run) and bits(run) == bits(tiny_run)
    for store in ("rollouts", "warm_start"):
        assert rollouts.verify(run / store).ok
        assert list(rollouts.read(run / store)) == list(rollouts.read(tiny_run / store))


def test_a_run_may_have_no_steps_to_take(tiny_run, make_config, tmp_path):
    """Of the warm start alone; and one that had taken more before it was resumed."""
    run = train(make_config(tmp_path / "warm", "--training.steps 0"))
    assert log(run) == [row for row in log(tiny_run) if row["kind"] != "train"][:7]
    shutil.copytree(tiny_run, tmp_path / "run")
    run = train(make_config(tmp_path / "run", "--training.steps 4"), resume=True)
    assert log(run) == log(tiny_run) and bits(run) == bits(tiny_run)
