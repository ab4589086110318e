"""Runs whose folder is in an object store: moto's S3 server on loopback."""

import json

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.training import run_folder
from grre_jax.training.checkpoints import listed
from grre_jax.training.run_folder import Mirror, copied, opened

from ..run_processes import entered


@pytest.fixture
def url(store):
    return f"s3://{store.bucket}/runs/a"


def work(folder, make_group, step):
    """What a learner does between two checkpoints; Orbax puts files in place by a rename."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    rollouts.write(folder / "rollouts", [make_group(step)], writer="w")
    with open(folder / "metrics.jsonl", "a") as log:
        log.write(json.dumps({"step": step}) + "\n")
    part = folder / "checkpoints" / f"{step}.orbax-checkpoint-tmp"
    (part / "params" / "d").mkdir(parents=True)
    (part / "params" / "d" / "0").write_bytes(b"arrays")
    part.rename(folder / "checkpoints" / str(step))


@pytest.fixture
def pushed(url, make_group):
    """`pushed(*steps)`: a mirror whose learner worked for these checkpoints and pushed each."""

    def push(*steps):
        run = Mirror(url)
        for step in steps:
            work(run.folder, make_group, step)
            run.push()
        return run

    return push


def test_what_was_pushed_is_pulled(store, url, make_group, pushed):
    first = pushed(0, 1)
    log = (first.folder / "metrics.jsonl").read_text()
    store.files.pipe_file(f"{store.bucket}/runs/a/tensorboard/events", b"of the killed process")
    with opened(url):  # refused later: nothing in the store changes
        pass
    assert "tensorboard/events" in first._store.names()
    with opened(url) as mirrored:
        mirrored.start()
        assert "tensorboard/events" not in first._store.names()
        assert list(rollouts.read(first.folder / "rollouts")) == [make_group(0), make_group(1)]
        assert (first.folder / "metrics.jsonl").read_text() == log
        assert listed(first.folder / "checkpoints") == [0, 1]
    assert not first.folder.exists()


@pytest.mark.parametrize("request_number", [2, 4, 6, 8])
def test_a_learner_killed_at_any_request_leaves_what_is_entered_whole(
    store, url, make_group, pushed, request_number
):
    """From some request on the store refuses everything, as if the process were gone."""
    run = pushed(0)
    work(run.folder, make_group, 1)
    count = iter(range(1, 1000))
    store.plan = lambda method, *_: method != "GET" and next(count) >= request_number and 403
    with pytest.raises(OSError):
        run.push()
    store.plan = None
    report = rollouts.verify(f"{url}/rollouts")
    assert report.ok and report.groups in (1, 2)
    assert entered(url) in ([0], [0, 1])
    with opened(url) as mirrored:
        kept = listed(mirrored.folder / "checkpoints")
        assert kept == entered(url)
        log = (run.folder / "metrics.jsonl").read_text().splitlines()
        assert len(log) > max(kept)


def test_a_copy_has_what_a_command_needs(store, url, pushed):
    run = pushed(0, 1)
    with copied(url, steps=[None]) as folder:
        names = {path.name for path in folder.iterdir()}
        assert names == {"checkpoints", "config.json", "metrics.jsonl"}
        assert listed(folder / "checkpoints") == [1]
        (folder / "evaluation.json").write_text("1")
    assert not folder.exists()
    assert run._store.read("evaluation.json") == b"1"
    with pytest.raises(DataError, match=r"7.*\[0, 1\]"), copied(url, steps=[7]):
        pass


def test_a_damaged_checkpoint_is_named(store, url, pushed):
    pushed(0)
    name = f"{store.bucket}/runs/a/checkpoints/0"
    store.files.rm_file(f"{name}/params/d/0")
    with pytest.raises(DataError, match="checkpoints/0/params/d/0"), opened(url):
        pass
    store.files.pipe_file(f"{name}.json", b'{"step"')
    with pytest.raises(DataError, match=r"checkpoints/0\.json"), opened(url):
        pass


def test_one_learner_and_no_foreign_folder(store, url):
    with opened(url), pytest.raises(UsageError, match="in use.*run-dir"), opened(url):
        pass
    store.files.pipe_file(f"{store.bucket}/photos/a.jpg", b"x")
    with pytest.raises(UsageError, match="photos"), opened(f"s3://{store.bucket}/photos"):
        pass


def test_a_checkpoint_is_entered_after_the_data_that_was_sealed_before_it(
    url, make_group, pushed, monkeypatch
):
    """The learner seals and saves while its files are listed."""
    run = pushed(0)
    states = run_folder._states

    def meanwhile(folder):
        monkeypatch.setattr(run_folder, "_states", states)
        work(folder, make_group, 1)
        return states(folder)

    monkeypatch.setattr(run_folder, "_states", meanwhile)
    run.push()
    assert len(rollouts.read(f"{url}/rollouts")) > max(entered(url))
    run.push()
    assert entered(url) == [0, 1] and len(rollouts.read(f"{url}/rollouts")) == 2


def test_a_run_that_ends_by_an_error_says_what_the_store_lacks(store, url, make_group):
    with pytest.raises(OSError, match="newest files are in") as caught, opened(url) as run:
        run.start()
        work(run.folder, make_group, 0)
        store.plan = lambda *_: 403
        raise KeyError
    assert str(run.folder) in str(caught.value) and listed(run.folder / "checkpoints") == [0]


def test_what_was_sent_is_not_sent_again_and_what_is_removed_goes(store, make_group):
    """In a folder too whose name is a pattern."""
    url = f"s3://{store.bucket}/runs/lr[1e-5]"
    run = Mirror(url)
    for step in (0, 1):
        work(run.folder, make_group, step)
    run.push()
    (run.folder / "checkpoints" / "1").rename(run.folder / "checkpoints" / ".1")
    store.log.clear()
    run.push()
    run._enter(7)  # listed a moment ago, gone now
    sent = [entry[1] for entry in store.log if entry[0] == "PUT"]
    assert entered(url) == [0] and all(name.endswith(run_folder.MANIFEST) for name in sent)
    run.clear()
    assert run._store.names() == []
