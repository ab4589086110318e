"""A learner and its explorers through one folder: the run of `loop.train`, bit for bit; and who
is not let in.

The roles run in threads of this process, so that what the other small runs compiled serves them
too; test_kill_roles.py takes processes and kills them.
"""

import concurrent.futures
import dataclasses
import io
import json
import shutil
import threading
import time

import pytest
from rich.console import Console

from grre_jax import reporting, rollouts
from grre_jax.config import CheckpointConfig, DataConfig, EvaluationConfig
from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.run_report import report
from grre_jax.storage.store_path import StorePath
from grre_jax.training import loop, state
from grre_jax.training.actors.explorer import Explorer
from grre_jax.training.actors.lease import Lease, read
from grre_jax.training.data.regime import Regime
from grre_jax.training.roles import ExplorerRole, explore_run, learn

from ..run_processes import bits, log

pytestmark = pytest.mark.usefixtures("no_reports")


class Crash(BaseException):
    """Ends an explorer where it stands."""


def quiet():
    return Console(file=io.StringIO(), width=200)


def groups(folder):
    reader = rollouts.read(folder / "rollouts")
    found = {
        (group.position, group.attempt, int(group.policy_version[0])): group for group in reader
    }
    assert len(found) == len(reader)
    return found


def together(*roles):
    """Runs roles side by side; what each returned.

    Where one fails the others would wait for it for ever: they are left behind in threads that end
    with the tests.
    """
    futures = [concurrent.futures.Future() for _ in roles]

    def play(role, future):
        try:
            future.set_result(role())
        except BaseException as error:
            future.set_exception(error)

    for role, future in zip(roles, futures, strict=True):
        threading.Thread(target=play, args=(role, future), daemon=True).start()
    done, left = concurrent.futures.wait(
        futures, timeout=2000, return_when=concurrent.futures.FIRST_EXCEPTION
    )
    failed = [future for future in futures if future in done and future.exception()]
    assert failed or not left, f"{len(left)} of {len(roles)} roles did not end"
    return [future.result() for future in failed or futures]


def test_a_learner_and_two_explorers_are_the_run_of_one_process(
    tiny_run, make_config, tmp_path, monkeypatch
):
    """One explorer dies after its first seal and is started again; the explorers come before the
    learner.
    """
    config, consoles = make_config(tmp_path / "run"), [quiet(), quiet(), quiet()]
    write, died = rollouts.write, []

    def dying(folder, sealed, **options):
        name = write(folder, sealed, **options)
        if options["writer"] == "explorer-b" and not died:
            died.append(name)
            raise Crash
        return name

    monkeypatch.setattr(rollouts, "write", dying)

    def explorer_b():
        role = ExplorerRole("b", 1, 2)
        with pytest.raises(Crash):
            explore_run(config, role, console=consoles[1])
        return explore_run(config, role, console=consoles[1])

    _, sealed_b, sealed_a = together(
        lambda: learn(config, console=consoles[0]),
        explorer_b,
        lambda: explore_run(config, ExplorerRole("a", 0, 2), console=consoles[2]),
    )
    assert log(tmp_path / "run") == log(tiny_run) and bits(tmp_path / "run") == bits(tiny_run)
    assert (
        groups(tmp_path / "run") == groups(tiny_run)
        and rollouts.verify(tmp_path / "run" / "rollouts").ok
    )
    writers = [entry.writer for entry in rollouts.read(tmp_path / "run" / "rollouts").datasets]
    assert set(writers) == {"explorer-a", "explorer-b"} and len(died) == 1
    shares = {entry.writer: 0 for entry in rollouts.read(tmp_path / "run" / "rollouts").datasets}
    for entry in rollouts.read(tmp_path / "run" / "rollouts").datasets:
        shares[entry.writer] += entry.groups
        assert entry.metadata["checkpoint"] == f"checkpoints/{entry.policy_version}"
    assert (
        sealed_a == shares["explorer-a"] and sealed_b < shares["explorer-b"]
    )  # the first seal was the one that died's
    assert json.loads((tmp_path / "run" / "learner.json").read_text())["ended"]
    # Started again, both find all done; the learner goes on by itself.
    assert explore_run(config, ExplorerRole("a", 0, 2), console=quiet()) == 0
    learn(config, console=quiet())
    assert log(tmp_path / "run") == log(tiny_run)


@pytest.mark.slow
def test_through_an_object_store_it_is_the_same_run(tiny_run, make_config, store, monkeypatch):
    """The learner dies and goes on; and the clock goes backwards all the while."""
    run, clock, died = StorePath(f"s3://{store.bucket}/runs/tiny"), [2e9], []
    config, write = make_config(str(run)), reporting.RunLog.write

    def backwards():
        clock[0] -= 100
        return clock[0]

    def dying(log, kind, step, scalars):
        write(log, kind, step, scalars)
        if (kind, step) == ("train", 5) and not died:
            died.append(step)
            raise Crash

    monkeypatch.setattr(time, "time", backwards)
    monkeypatch.setattr(reporting.RunLog, "write", dying)
    monkeypatch.setattr(reporting, "report", report)

    def learner():
        with pytest.raises(Crash):
            learn(config, console=quiet())
        return learn(config, console=quiet())

    assert (
        together(learner, lambda: explore_run(config, ExplorerRole("a"), console=quiet()))[0] == run
    )
    assert (
        log(run) == log(tiny_run)
        and bits(run) == bits(tiny_run)
        and groups(run) == groups(tiny_run)
    )
    times = [json.loads(line)["time"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert died and times == sorted(times, reverse=True) and rollouts.verify(run / "rollouts").ok
    assert (run / "plots" / "overview.png").is_file() and json.loads(
        (run / "learner.json").read_text()
    )["token"] == 2
    with pytest.raises(UsageError, match="already exists: continue it with --resume"):
        loop.train(config, console=quiet())


@pytest.mark.parametrize(
    ("ahead", "swap"),
    [(False, False), (True, False), (False, True)],
    ids=["waiting", "discarding", "swapping"],
)
def test_free_running_keeps_the_bound(make_config, tmp_path, ahead, swap):
    fields = dict(
        regime=Regime(staleness=1),
        evaluation=EvaluationConfig(questions=0),
        checkpoint=CheckpointConfig(every=3),
    )
    config, said = make_config(tmp_path / "run", **fields), quiet()
    role = ExplorerRole("a", free=True, ahead=ahead, swap=swap)
    together(
        lambda: learn(config, free=True, console=quiet()),
        lambda: explore_run(config, role, console=said),
    )
    assert (
        "at most 1 updates old" in said.file.getvalue() and "not repeatable" in said.file.getvalue()
    )
    trained = [row for row in log(tmp_path / "run") if row["kind"] == "train"]
    assert len(trained) == 8 and all(
        row.get("staleness_0", 0) + row.get("staleness_1", 0) == 4 for row in trained
    )
    older = {
        position for position, _, version in groups(tmp_path / "run") if version < position // 4 - 1
    }
    assert all(
        (row["stale_groups_discarded"] > 0) == ("stale_response_length" in row) for row in trained
    )
    assert sum(row["stale_groups_discarded"] for row in trained) == len(
        [k for k in groups(tmp_path / "run") if k[2] < k[0] // 4 - 1]
    )
    assert ahead or not older


@pytest.fixture
def finished(tiny_run, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(tiny_run, tmp_path / "run")


def test_a_checkpoint_that_is_gone_is_named(finished, make_config):
    shutil.rmtree(finished / "rollouts")
    with pytest.raises(
        DataError,
        match=(
            r"checkpoint of step 3 is gone from .*: it holds \[0, 6, 8\], and .*rollouts lacks"
            r" groups that this version was to sample"
        ),
    ):
        explore_run(make_config(finished), ExplorerRole("a"), console=quiet())
    assert {version for _, _, version in groups(finished)} == {0}  # what could be sampled was


def test_a_second_learner_is_refused(finished, make_config):
    before = (finished / "metrics.jsonl").read_bytes()
    with Lease(finished / "learner.json", "a learner"):
        for role in (
            lambda: learn(make_config(finished), console=quiet()),
            lambda: loop.train(make_config(finished), resume=True, console=quiet()),
            lambda: loop.train(make_config(finished), overwrite=True, console=quiet()),
        ):
            with pytest.raises(UsageError, match="already has a learner: process"):
                role()
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_second_explorer_of_a_name_is_refused(finished, make_config):
    config = make_config(finished)
    with Lease(finished / "explorers" / "a.json", "an explorer named a", explorers=2, index=0):
        with pytest.raises(UsageError, match="already has an explorer named a: process"):
            explore_run(config, ExplorerRole("a", 0, 2), console=quiet())
        with pytest.raises(
            UsageError, match="explorer a shares the run among 2 and this one among 3"
        ):
            explore_run(config, ExplorerRole("b", 1, 3), console=quiet())
        with pytest.raises(
            UsageError, match="explorer a has --index 0 of 2 too: give each its own --index"
        ):
            explore_run(config, ExplorerRole("b", 0, 2), console=quiet())
        assert explore_run(config, ExplorerRole("b", 1, 2), console=quiet()) == 0


def test_an_explorer_of_another_run_is_refused(finished, make_config):
    config = make_config(finished)
    for other in (
        dataclasses.replace(config, seed=1),
        dataclasses.replace(config, regime=Regime(sync_interval=4)),
    ):
        with pytest.raises(
            UsageError, match=r"another configuration \(different: (seed|regime\.sync_interval)\)"
        ):
            explore_run(other, ExplorerRole("a"), console=quiet())
    learner = finished / "learner.json"
    for details, message in (
        (
            {"samples": False, "free_running": True},
            "runs with --free-running and this explorer without it",
        ),
        (
            {"samples": True, "free_running": False},
            "trained by grre train, which samples by itself",
        ),
    ):
        with Lease(learner, "a learner", **details), pytest.raises(UsageError, match=message):
            explore_run(config, ExplorerRole("a"), console=quiet())
        # Of one that ended, or was killed, nothing follows.
        explore_run(config, ExplorerRole("a"), console=quiet())
        learner.write_text(json.dumps(read(learner) | {"ended": False}))
        explore_run(config, ExplorerRole("a"), console=quiet())


def test_a_learner_beside_explorers_that_it_does_not_go_with_is_refused(finished, make_config):
    config, before = make_config(finished), sorted(finished.rglob("*"))
    with Lease(
        finished / "explorers" / "a.json",
        "an explorer named a",
        explorers=1,
        index=0,
        free_running=True,
    ):
        for role, message in (
            (
                lambda: learn(config, console=quiet()),
                "explorer a of .* runs with --free-running and this learner without it",
            ),
            (
                lambda: learn(config, overwrite=True, console=quiet()),
                "explorer a of .* samples for the run that would be replaced: stop it",
            ),
            (
                lambda: loop.train(config, resume=True, console=quiet()),
                "explorer a of .* samples for this run, and grre train samples by",
            ),
        ):
            with pytest.raises(UsageError, match=message):
                role()
    assert {*before} <= {*finished.rglob("*")}


def test_a_run_of_other_draws_is_refused_and_left_alone(finished, make_config):
    config = make_config(finished)
    (finished / "run.json").write_text('{"id": "of a version before"}')
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    for role in (
        lambda: loop.train(config, resume=True, console=quiet()),
        lambda: learn(config, console=quiet()),
        lambda: explore_run(config, ExplorerRole("a"), console=quiet()),
    ):
        with pytest.raises(UsageError, match=r"run\.json: expected random_streams 2, got None"):
            role()
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


@pytest.mark.parametrize("last", [False, True], ids=["writing", "ending"])
def test_an_explorer_of_a_run_that_was_replaced_seals_nothing_more(
    finished, make_config, monkeypatch, last
):
    """The run is replaced while the explorer samples, or reads the folder that it finds
    complete.
    """
    if not last:
        shutil.rmtree(finished / "rollouts")
    called, created = Explorer.judged, state.create

    def replace():
        (finished / "run.json").write_text(json.dumps({"id": "another"}))
        shutil.rmtree(finished / "rollouts", ignore_errors=True)

    monkeypatch.setattr(
        Explorer,
        "judged",
        lambda self, *some, **options: (called(self, *some, **options), replace())[0],
    )
    if last:
        monkeypatch.setattr(
            state,
            "create",
            lambda *some: (created(*some), (finished / "run.json").write_text('{"id": "another"}'))[
                0
            ],
        )
    with pytest.raises(
        DataError,
        match=(
            "was replaced or removed meanwhile; nothing more is sealed: start this explorer again"
        ),
    ):
        explore_run(make_config(finished), ExplorerRole("a"), console=quiet())
    assert (finished / "rollouts").exists() == last


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"name": "a/b"}, "--explorer-name 'a/b' cannot be used"),
        ({"name": ""}, "--explorer-name '' cannot be used"),
        ({"name": "a", "index": 2, "count": 2}, "--index 2 of --explorers 2"),
        ({"name": "a", "index": -1}, "--index -1"),
        ({"name": "a", "ahead": True}, "--allow-stale goes with --free-running"),
    ],
)
def test_options_that_do_not_fit(fields, message):
    with pytest.raises(UsageError, match=message):
        ExplorerRole(**fields)


def test_a_run_that_samples_nothing_has_no_roles(make_config, tmp_path):
    config = make_config(tmp_path / "run", data=DataConfig(path=str(tmp_path)))
    for role in (lambda: learn(config), lambda: explore_run(config, ExplorerRole("a"))):
        with pytest.raises(UsageError, match="samples nothing of its own"):
            role()


def test_weights_are_not_swapped_over_an_int8_cache(make_config, tmp_path):
    config = make_config(tmp_path / "run", regime=Regime(staleness=1))
    sampling = dataclasses.replace(config.sampling, cache_dtype="int8")
    role = ExplorerRole("a", free=True, swap=True)
    with pytest.raises(UsageError, match=r"--swap-weights: .*sampling\.cache_dtype int8"):
        explore_run(dataclasses.replace(config, sampling=sampling), role, console=quiet())
    assert not (tmp_path / "run").exists()
