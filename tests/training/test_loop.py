"""Whole runs: what one leaves behind, and that one which was interrupted anywhere and resumed is
the run that was not.

Interruptions here are exceptions and signals at chosen points within this process;
test_kill_and_resume.py kills processes.
"""

import os
import shutil
import signal
import sys
import threading

import numpy as np
import pytest
from flax import nnx

from grre_jax import models, reporting, rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding
from grre_jax.tasks.datasets.arithmetic import Arithmetic
from grre_jax.training import build, loop, policies
from grre_jax.training.checkpoints import integrity
from grre_jax.training.checkpoints.folder import Checkpoints, listed
from grre_jax.training.data.plan import Regime
from grre_jax.training.runtime.metrics import Diverged
from grre_jax.training.runtime.stopping import Stopped

from ..groups import text_group
from ..run_processes import bits, first_state, log, quiet

pytestmark = pytest.mark.usefixtures("no_reports")


class Crash(BaseException):
    """Ends a run where it stands; nothing in the code may catch it."""


def train(config, **options):
    return loop.train(config, console=quiet(), **options)


def test_what_a_run_leaves(tiny_run):
    found = [(row["kind"], row["step"]) for row in log(tiny_run)]
    warm, trained = ([(kind, n) for n in range(1, 9)] for kind in ("warm_start", "train"))
    assert found == [*warm[:6], ("eval", 0), *trained[:4], ("eval", 4), *trained[4:], ("eval", 8)]
    staleness = [row["staleness"] for row in log(tiny_run) if row["kind"] == "train"]
    assert staleness == [0, 1, 2, 0, 1, 2, 0, 1]
    reader = rollouts.read(tiny_run / "rollouts")
    # A data set a call.
    sampled = [(entry.policy_version, entry.groups) for entry in reader.datasets]
    assert sampled == [(0, 4)] * 3 + [(3, 4)] * 3 + [(6, 4)] * 2
    assert [group.position for group in reader] == list(range(32))
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
    _, like = first_state(parts)
    checkpoints = Checkpoints(tiny_run / "checkpoints", read_only=True)
    for step in (0, 6):
        params = checkpoints.restore_params(like.params, step)
        assert integrity.digest(parts.full(params)) == digests[step]


def test_a_step_trains_on_its_own_places_of_the_stream(tiny_run):
    reader = rollouts.read(tiny_run / "rollouts")
    trained = [row for row in log(tiny_run) if row["kind"] == "train"]
    for row in trained:
        groups = [reader[4 * (row["step"] - 1) + place] for place in range(4)]
        assert row["reward"] == pytest.approx(np.mean([g.rewards for g in groups]))
        assert row["tokens"] == sum(len(g.tokens) for g in groups)
    # While the policy that sampled is the one that trains, the two sets of log-probs are the same.
    assert abs(trained[0]["kl_behavior_k1"]) < 1e-6 and trained[0]["clip_fraction"] == 0


WANDB = "--logging.wandb_project p"


@pytest.mark.parametrize(
    "owner, name, words, field",
    [
        (Arithmetic, "questions_at", "", "data are not there"),
        (loop, "Checkpoints", "", "data are not there"),
        (None, "", WANDB, "wandb_project"),
        (None, "", "--sampling.max_new_tokens 1", "max_new_tokens"),
        (None, "", "--mesh.data 3", "mesh"),
    ],
)
def test_what_is_wrong_with_a_request_leaves_no_folder_behind(
    make_config, tmp_path, monkeypatch, owner, name, words, field
):
    """Neither a new run's, nor an empty one, nor its lock; the next try
    may begin.
    """

    def fail(*_, **__):
        raise DataError("the task's data are not there")

    monkeypatch.setitem(sys.modules, "wandb", None)
    if owner:
        monkeypatch.setattr(owner, name, fail)
    with pytest.raises((UsageError, DataError), match=field):
        train(make_config(tmp_path / "runs" / "run", words))
    assert not (tmp_path / "runs" / "run").exists()


def test_a_run_that_fails_to_begin_anew_leaves_the_old_one(
    tiny_run, make_config, tmp_path, monkeypatch
):
    shutil.copytree(tiny_run, tmp_path / "run")
    config = make_config(tmp_path / "run", WANDB)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="wandb"):
        train(config, overwrite=True)
    assert log(tmp_path / "run") == log(tiny_run)


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
    draw = np.random.default_rng(0)
    # The right answer is always 7: something to learn from a few steps.
    groups = [
        text_group(number, ["7$", "2$", "7$", "5$"], [1, 0, 1, 0], prompt=f"{a}+{b}>")
        for number, (a, b) in enumerate(draw.integers(0, 10, (24, 2))[:16])
    ]
    contains = {"contains": ["sevens/test"]}
    rollouts.write(tmp_path / "store", groups, writer="import", metadata=contains)
    words = f"--data.path {tmp_path / 'store'} --objective.name reinforce"
    words += " --warm-start.steps 0 --evaluation.questions 0 --checkpoint.export true"
    config = make_config(tmp_path / "run", words)
    run = train(config)
    assert not (run / "rollouts").exists()
    tokenizer = build.build(config).tokenizer
    tokens = np.array([[*tokenizer.encode_prompt("3+4>"), *tokenizer.encode_completion("7")[:1]]])

    def logprob(step):
        _, graph, params, _ = policies.policy_at(run, config, step)
        return models.token_logprobs(nnx.merge(graph, params), tokens)[0, -1]

    assert logprob(8) > max(logprob(0) + 0.5, np.log(0.4))  # half of the answers are right
    # What it has seen goes with the model, and keeps the next run from being tested on it.
    following = make_config(tmp_path / "next", f"--model.path {run / 'model'}")
    assert build.model_contents(following) == {"sevens/test"}


def interrupt(patch, point, act):
    """Makes the next run act after a point: ("row", kind, step), ("seal", version) or ("report",)."""
    save = Checkpoints.save

    def save_and_wait(self, state, wait=False, metrics=None):
        save(self, state, wait=True, metrics=metrics)

    patch.setattr(Checkpoints, "save", save_and_wait)
    owner, name, at = {
        "row": (reporting.RunLog, "write", lambda log, kind, step, _: (kind, step)),
        "seal": (rollouts, "write", lambda *_, policy_version=-1, **__: (policy_version,)),
        "report": (reporting, "report", lambda *_, **__: ()),
    }[point[0]]
    original = getattr(owner, name)

    def call(*given, **options):
        result = original(*given, **options)
        if at(*given, **options) == point[1:]:
            act()
        return result

    patch.setattr(owner, name, call)


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
        for point, act, error, saved in (
            (("row", "warm_start", 2), terminate, Stopped, []),
            (("seal", 3), crash, Crash, [3]),
            (("seal", 6), terminate, Stopped, [6]),
            (("report",), crash, Crash, [8]),
        ):
            with monkeypatch.context() as patch, pytest.raises(error) as caught:
                interrupt(patch, point, act)
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


def test_what_replaces_import_in_all_threads_is_imported_before_there_are_any(
    make_config, tmp_path, monkeypatch
):
    threads = []

    def import_libraries():
        threads.extend(threading.enumerate())
        raise Crash

    before = threading.enumerate()
    monkeypatch.setattr(encoding, "import_libraries", import_libraries)
    with pytest.raises(Crash):
        train(make_config(tmp_path / "run"))
    assert threads == before


def test_a_run_may_have_no_steps_to_take(tiny_run, make_config, tmp_path):
    """Of the warm start alone; and one that had taken more before it was resumed."""
    run = train(make_config(tmp_path / "warm", "--training.steps 0"))
    assert log(run) == [row for row in log(tiny_run) if row["kind"] != "train"][:7]
    shutil.copytree(tiny_run, tmp_path / "run")
    run = train(make_config(tmp_path / "run", "--training.steps 4"), resume=True)
    assert log(run) == log(tiny_run) and bits(run) == bits(tiny_run)


def test_an_offline_run_samples_all_of_its_data_first(make_config, tmp_path):
    config = make_config(tmp_path, "--warm-start.steps 0", regime=Regime(offline=True))
    train(config)
    reader = rollouts.read(tmp_path / "rollouts")
    assert [entry.policy_version for entry in reader.datasets] == [0] * 8 and len(reader) == 32
    staleness = [row["staleness"] for row in log(tmp_path) if row["kind"] == "train"]
    assert staleness == [*range(8)]
