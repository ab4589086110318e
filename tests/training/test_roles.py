"""A learner and its explorers through one folder: the run of `loop.train`, bit for bit; and who
is not let in.

The roles run in threads of this process, so that what the other small runs compiled serves them
too; test_kill_roles.py takes processes and kills them.
"""

import collections
import concurrent.futures
import io
import json
import shutil
import threading

import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.training.actors.explorer import Explorer
from grre_jax.training.actors.lease import Lease, read
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
    assert groups(tmp_path / "run") == groups(tiny_run)
    assert rollouts.verify(tmp_path / "run" / "rollouts").ok
    shares = collections.Counter()
    for entry in rollouts.read(tmp_path / "run" / "rollouts").datasets:
        shares[entry.writer] += entry.groups
        assert entry.metadata["checkpoint"] == f"checkpoints/{entry.policy_version}"
    # The first seal was the one that died's.
    assert len(died) == 1 and 0 < sealed_b < shares["explorer-b"]
    assert sealed_a == shares["explorer-a"] == shares.total() - shares["explorer-b"]
    # Started again, they find all done.
    assert explore_run(config, ExplorerRole("a", 0, 2), console=quiet()) == 0
    learn(config, console=quiet())
    assert log(tmp_path / "run") == log(tiny_run)


def test_free_running_keeps_the_bound(make_config, tmp_path):
    words = "--regime.sync_interval 1 --regime.staleness 1 --evaluation.questions 0"
    config = make_config(tmp_path / "run", words)
    role = ExplorerRole("a", free=True)
    together(
        lambda: learn(config, free=True, console=quiet()),
        lambda: explore_run(config, role, console=quiet()),
    )
    trained = [row for row in log(tmp_path / "run") if row["kind"] == "train"]
    assert len(trained) == 8
    for row in trained:
        assert row.get("staleness_0", 0) + row.get("staleness_1", 0) == 4
    assert all(version >= position // 4 - 1 for position, _, version in groups(tmp_path / "run"))


@pytest.fixture
def finished(tiny_run, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(tiny_run, tmp_path / "run")


def test_a_checkpoint_that_is_gone_is_named(finished, make_config):
    shutil.rmtree(finished / "rollouts")
    with pytest.raises(DataError, match="step 3"):
        explore_run(make_config(finished), ExplorerRole("a"), console=quiet())
    assert {version for _, _, version in groups(finished)} == {0}  # what could be sampled was


def test_a_second_learner_is_refused(finished, make_config):
    before = (finished / "metrics.jsonl").read_bytes()
    with Lease(finished / "learner.json", "a learner"):
        for overwrite in (False, True):
            with pytest.raises(UsageError, match="already has a learner"):
                learn(make_config(finished), overwrite=overwrite, console=quiet())
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_an_explorer_of_another_run_is_refused(finished, make_config):
    def explore(**fields):
        return explore_run(make_config(finished, **fields), ExplorerRole("a"), console=quiet())

    with pytest.raises(UsageError, match="different: seed"):
        explore(seed=1)
    learner = finished / "learner.json"
    for samples, word in ((False, "--free-running"), (True, "grre train")):
        details = {"samples": samples, "free_running": not samples}
        with Lease(learner, "a learner", **details), pytest.raises(UsageError, match=word):
            explore()
    # Of one that was killed nothing follows.
    learner.write_text(json.dumps(read(learner) | {"ended": False}))
    explore()


def test_an_explorer_of_a_run_that_was_replaced_seals_nothing_more(
    finished, make_config, monkeypatch
):
    shutil.rmtree(finished / "rollouts")
    judged = Explorer.judged

    def replaced(self, *positions, **options):
        (finished / "run.json").write_text(json.dumps({"id": "another"}))
        shutil.rmtree(finished / "rollouts", ignore_errors=True)
        return judged(self, *positions, **options)

    monkeypatch.setattr(Explorer, "judged", replaced)
    with pytest.raises(DataError, match="replaced"):
        explore_run(make_config(finished), ExplorerRole("a"), console=quiet())
    assert not (finished / "rollouts").exists()


def test_options_that_do_not_fit():
    for option, fields in (("--explorer-name", ("a/b",)), ("--index", ("a", 2, 2))):
        with pytest.raises(UsageError, match=option):
            ExplorerRole(*fields)


def test_a_run_that_samples_nothing_has_no_roles(make_config, tmp_path):
    config = make_config(tmp_path / "run", f"--data.path {tmp_path}")
    for role in (lambda: learn(config), lambda: explore_run(config, ExplorerRole("a"))):
        with pytest.raises(UsageError, match="samples nothing"):
            role()
