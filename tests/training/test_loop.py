"""Whole runs: what one leaves behind, and that one which was interrupted anywhere and resumed is
the run that was not.

Interruptions here are exceptions and signals at chosen points within this process;
test_kill_and_resume.py kills processes.
"""

import io
import os
import shutil
import signal
import sys

import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from grre_jax import models, reporting, rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.datasets.arithmetic import Arithmetic
from grre_jax.training import build, loop, policies
from grre_jax.training.checkpoints import integrity
from grre_jax.training.checkpoints.folder import Checkpoints, Keep, listed
from grre_jax.training.data.regime import Regime
from grre_jax.training.runtime.delayed_metrics import Diverged
from grre_jax.training.runtime.stopping import Stopped

from ..groups import text_group
from ..run_processes import bits, first_state, log

pytestmark = pytest.mark.usefixtures("no_reports")


class Crash(BaseException):
    """Ends a run where it stands; nothing in the code may catch it."""


def train(config, **options):
    return loop.train(config, console=Console(file=io.StringIO()), **options)


def assert_same_run(folder, expected):
    assert log(folder) == log(expected)
    assert bits(folder) == bits(expected)
    for store in ("rollouts", "warm_start"):
        assert rollouts.verify(folder / store).ok
        assert list(rollouts.read(folder / store)) == list(rollouts.read(expected / store))


@pytest.fixture
def interrupt(monkeypatch):
    """`interrupt(point, act)`: makes the next run act (crash, by default) at a point: ("row",
    kind, step), ("seal", policy version) or "report".
    """
    save = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints,
        "save",
        lambda self, state, wait=False, metrics=None: save(self, state, wait=True, metrics=metrics),
    )

    def crash():
        raise Crash

    def at(point, act=crash):
        def after(module, name, reached):
            original = getattr(module, name)

            def call(*arguments, **options):
                result = original(*arguments, **options)
                if reached(*arguments, **options):
                    act()
                return result

            monkeypatch.setattr(module, name, call)

        if point == "report":
            monkeypatch.setattr(reporting, "report", lambda *_, **__: act())
        elif point[0] == "row":
            after(reporting.RunLog, "write", lambda log, kind, step, _: (kind, step) == point[1:])
        else:
            after(rollouts, "write", lambda *_, policy_version=-1, **__: policy_version == point[1])

    return at


def test_what_a_run_leaves(tiny_run):
    found = [(row["kind"], row["step"]) for row in log(tiny_run)]
    warm, trained = ([(kind, n) for n in range(1, 9)] for kind in ("warm_start", "train"))
    assert found == [*warm[:6], ("eval", 0), *trained[:4], ("eval", 4), *trained[4:], ("eval", 8)]
    staleness = [row["staleness"] for row in log(tiny_run) if row["kind"] == "train"]
    assert staleness == [0, 1, 2, 0, 1, 2, 0, 1]
    reader = rollouts.read(tiny_run / "rollouts")
    sampled = {entry.policy_version: entry.groups for entry in reader.datasets}
    assert sampled == {0: 12, 3: 12, 6: 8}
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
    checkpoints = Checkpoints(tiny_run / "checkpoints", Keep(), read_only=True)
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


@pytest.mark.parametrize("point", [("seal", 3), "report"], ids=str)
def test_interrupted_and_resumed(tiny_run, make_config, tmp_path, interrupt, monkeypatch, point):
    """The seal of version 3 comes right after the checkpoint of step 3: that step's row must be
    on disk by then.
    """
    config = make_config(tmp_path / "run")
    interrupt(point)
    with pytest.raises(Crash):
        train(config)
    monkeypatch.undo()
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("rollouts/*/*")}
    train(config, resume=True)
    assert_same_run(tmp_path / "run", tiny_run)
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize(
    "point, saved",
    [(("seal", 3), [3]), (("row", "warm_start", 2), [])],
    ids=str,
)
def test_a_signal_saves_and_stops(
    tiny_run, make_config, tmp_path, interrupt, monkeypatch, point, saved
):
    """Between data sets of one step, and in the warm start, which has nothing to save yet."""
    config = make_config(tmp_path / "run")
    # A run that does not listen must not take the tests with it.
    default = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        interrupt(point, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Stopped, match="--resume") as caught:
            train(config)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, default)
    monkeypatch.undo()
    assert caught.value.exit_status == 143
    trained = [row["step"] for row in log(tmp_path / "run") if row["kind"] == "train"]
    assert listed(tmp_path / "run" / "checkpoints")[-1:] == trained[-1:] == saved
    train(config, resume=True)
    assert_same_run(tmp_path / "run", tiny_run)


@pytest.mark.parametrize(
    "regime, sampled",
    [(Regime(2, 1), {0: 12, 2: 8, 4: 8, 6: 4}), (Regime(offline=True), {0: 32})],
    ids=["ahead", "offline"],
)
def test_other_regimes(make_config, tmp_path, regime, sampled):
    config = make_config(tmp_path / "whole", "--warm-start.steps 0", regime=regime)
    train(config)
    reader = rollouts.read(tmp_path / "whole" / "rollouts")
    assert {entry.policy_version: entry.groups for entry in reader.datasets} == sampled
    staleness = [row["staleness"] for row in log(tmp_path / "whole") if row["kind"] == "train"]
    assert staleness == [regime.age(step) for step in range(8)]


def raising(error):
    def fail(*arguments, **options):
        raise error

    return fail


WANDB = "--logging.wandb_project p"


@pytest.mark.parametrize(
    "owner, name, words, message",
    [
        (Arithmetic, "questions_at", "", "data are not there"),
        (loop, "Checkpoints", "", "data are not there"),
        (None, "", WANDB, "wandb_project"),
        (None, "", "--sampling.max_new_tokens 1", "max_new_tokens"),
        (None, "", "--mesh.data 3", "mesh"),
    ],
)
def test_what_is_wrong_with_a_request_leaves_no_folder_behind(
    make_config, tmp_path, monkeypatch, owner, name, words, message
):
    """Neither a new run's, nor an empty one, nor its lock; the next try
    may begin.
    """
    monkeypatch.setitem(sys.modules, "wandb", None)
    if owner:
        monkeypatch.setattr(owner, name, raising(DataError("the task's data are not there")))
    with pytest.raises((UsageError, DataError), match=message):
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
    own.write_text(
        "import jax.numpy as jnp\ndef lost(x):\n    return x.advantages * x.logprobs *"
        " jnp.where(x.advantages > -9, jnp.nan, 1)\n"
    )
    words = f"--regime.sync_interval 1 --objective.name {own}:lost --warm-start.steps 0"
    config = make_config(tmp_path / "run", words)
    with pytest.raises(Diverged, match="train step 1"):
        train(config)
    assert [row["step"] for row in log(tmp_path / "run") if row["kind"] == "train"] == [1]
    assert listed(tmp_path / "run" / "checkpoints") == [0]


def test_learning_from_stored_text(make_config, tmp_path):
    """Imitating the right answers of imported text makes them likely."""
    draw = np.random.default_rng(0)
    # The right answer is always 7: something to learn from a few steps.
    groups = [
        text_group(number, ["7$", "2$", "7$", "5$"], [1, 0, 1, 0], prompt=f"{a}+{b}>")
        for number, (a, b) in enumerate(draw.integers(0, 10, (24, 2)))
    ]
    contains = {"contains": ["sevens/test"]}
    rollouts.write(tmp_path / "store", groups, writer="import", metadata=contains)
    words = "--data.questions 0:16 --objective.name reinforce --warm-start.steps 0"
    words += " --evaluation.questions 0 --checkpoint.every 100 --checkpoint.export true"
    config = make_config(tmp_path / "run", f"--data.path {tmp_path / 'store'} {words}")
    train(config)
    assert not (tmp_path / "run" / "rollouts").exists()
    tokenizer = build.build(config).tokenizer
    tokens = np.array([[*tokenizer.encode_prompt("3+4>"), *tokenizer.encode_completion("7")[:1]]])
    policies_at = {step: policies.policy_at(tmp_path / "run", config, step) for step in (0, 8)}
    before, after = (
        models.token_logprobs(nnx.merge(graph, params), tokens)[0, -1]
        for _, graph, params, _ in policies_at.values()
    )
    assert after > max(before + 0.5, np.log(0.4))  # half of the answers are right
    # What it has seen goes with the model, and keeps the next run from being tested on it.
    following = make_config(tmp_path / "next", f"--model.path {tmp_path / 'run' / 'model'}")
    assert build.model_contents(following) == {"sevens/test"}
