"""Runs whose folder is in an object store: moto's S3 server on loopback."""

import json

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.training import mirror
from grre_jax.training.mirror import Mirror, copied, opened

from ..run_processes import entered


@pytest.fixture
def url(store):
    return f"s3://{store.bucket}/runs/a"


def write_checkpoint(folder, step, content=b"arrays"):
    """Files like Orbax's, in place by a rename."""
    part = folder / "checkpoints" / f"{step}.orbax-checkpoint-tmp"
    (part / "params" / "d").mkdir(parents=True)
    (part / "params" / "d" / "0").write_bytes(content)
    (part / "_METADATA").write_bytes(b"{}")
    part.rename(folder / "checkpoints" / str(step))


def work(folder, make_group, step):
    """What a learner does between two checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    rollouts.write(folder / "rollouts", [make_group(step)], writer="w")
    with open(folder / "metrics.jsonl", "a") as log:
        log.write(json.dumps({"step": step}) + "\n")
    write_checkpoint(folder, step)


def files(folder):
    """Visible files of a run by name, but for the learner's own."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return {name: (folder / name).read_bytes() for name in names if mirror._kind(name) != "hidden"}


def test_what_was_pushed_is_pulled(store, url, make_group, pushed):
    first = pushed(0, 1)
    before = files(first.folder)
    store.files.pipe_file(f"{store.bucket}/runs/a/tensorboard/events", b"of the killed process")
    assert entered(url) == [0, 1]
    with opened(url):  # refused later: nothing in the store changes
        assert files(first.folder) == before
    assert "tensorboard/events" in first._store.names()
    with opened(url) as mirrored:
        mirrored.start()
        assert "tensorboard/events" not in first._store.names()
        assert list(rollouts.read(first.folder / "rollouts")) == [make_group(0), make_group(1)]
    assert not first.folder.exists()


@pytest.mark.parametrize("request_number", range(1, 11))
def test_a_learner_killed_at_any_request_leaves_what_is_entered_whole(
    store, url, make_group, pushed, request_number
):
    """From some request on the store refuses everything, as if the process were gone."""
    run = pushed(0)
    work(run.folder, make_group, 1)
    count = iter(range(1, 1000))
    store.plan = lambda method, *_: method != "GET" and next(count) >= request_number and 403
    try:
        run.push()
        least = [0, 1]
    except OSError:
        least = [0]
    store.plan = None
    report = rollouts.verify(f"{url}/rollouts")
    assert report.ok and report.groups in (1, 2)
    assert least <= entered(url) <= [0, 1]
    with opened(url) as mirrored:
        mirrored.start()
        kept = sorted(int(path.name) for path in (run.folder / "checkpoints").iterdir())
        assert kept == entered(url)
        log = (run.folder / "metrics.jsonl").read_text().splitlines()
        assert len(log) > max(entered(url))


def test_a_copy_has_what_a_command_needs(store, url, pushed):
    run = pushed(0, 1, 2)
    (run.folder / "plots").mkdir()
    (run.folder / "plots" / "a.png").write_bytes(b"a")
    run.push()
    with copied(url, steps=[None]) as folder:
        assert {path.name for path in folder.iterdir()} == {
            "checkpoints",
            "config.json",
            "metrics.jsonl",
        }
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["2"]
        (folder / "evaluation.json").write_text("1")
    assert not folder.exists()
    assert store.files.cat_file(f"{store.bucket}/runs/a/evaluation.json") == b"1"
    with pytest.raises(DataError, match=r"7.*\[0, 1, 2\]"), copied(url, steps=[7]):
        pass


def test_what_is_damaged_is_named(store, url, pushed):
    pushed(0)
    name = f"{store.bucket}/runs/a/checkpoints/0"
    store.files.rm_file(f"{name}/params/d/0")
    for named in ("checkpoints/0", r"checkpoints/0\.json"):
        for context in (opened(url), copied(url, steps=[0])):
            with pytest.raises(DataError, match=named), context:
                pass
        store.files.pipe_file(f"{name}.json", b'{"step"')


def test_one_learner_and_no_foreign_folder(store, url):
    with opened(url), pytest.raises(UsageError, match="run_dir"), opened(url):
        pass
    store.files.pipe_file(f"{store.bucket}/photos/a.jpg", b"x")
    with pytest.raises(UsageError, match="photos"):
        with opened(f"s3://{store.bucket}/photos"):
            pass
    store.plan = lambda *_: 403
    with pytest.raises(OSError), opened(url):
        pass


def test_a_run_is_cleared_with_its_config_last(store, url, pushed):
    run = pushed(0)
    count = iter(range(100))
    store.plan = lambda method, *_: 403 if method in ("POST", "DELETE") and next(count) else None
    with pytest.raises(OSError):
        run.clear()
    store.plan = None
    names = run._store.names()
    assert "config.json" in names and entered(url) == [] and "rollouts/manifest.jsonl" not in names
    run.clear()
    assert run._store.names() == []


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


def test_only_what_is_new_is_sent_and_what_is_removed_goes(store, url, make_group, pushed):
    run = pushed(0, 1)
    work(run.folder, make_group, 2)
    (run.folder / "checkpoints" / "1").rename(run.folder / "checkpoints" / ".1")
    store.log.clear()
    run.push()
    run._enter(7)  # listed a moment ago, gone now
    sent = {path for method, path, _ in store.log if method == "PUT"}
    assert not [path for path in sent if "/checkpoints/0" in path]
    assert entered(url) == [0, 2]
    names = store.files.find(f"{store.bucket}/runs/a/checkpoints")
    assert not [name for name in names if "/1" in name]
    store.log.clear()
    run.push()
    assert not [entry for entry in store.log if entry[0] == "PUT"]


def test_a_checkpoint_is_entered_after_the_data_that_was_sealed_before_it(
    url, make_group, pushed, monkeypatch
):
    """The learner seals and saves while its files are listed."""
    run = pushed(0)
    states = mirror._states

    def meanwhile(folder):
        monkeypatch.setattr(mirror, "_states", states)
        work(folder, make_group, 1)
        return states(folder)

    monkeypatch.setattr(mirror, "_states", meanwhile)
    run.push()
    assert len(rollouts.read(f"{url}/rollouts")) > max(entered(url))
    run.push()
    assert entered(url) == [0, 1] and len(rollouts.read(f"{url}/rollouts")) == 2


def test_a_run_that_ends_by_an_error_says_what_the_store_lacks(store, url, make_group, caplog):
    with pytest.raises(KeyError), opened(url) as run:
        run.start()
        work(run.folder, make_group, 0)
        store.plan = lambda *_: 403
        raise KeyError
    assert str(run.folder) in caplog.text and (run.folder / "checkpoints" / "0").is_dir()


def test_names_with_brackets_are_no_patterns(store, make_group):
    url = f"s3://{store.bucket}/runs/lr[1e-5]"
    run = Mirror(url)
    work(run.folder, make_group, 0)
    work(run.folder, make_group, 1)
    run.push()
    (run.folder / "checkpoints" / "1").rename(run.folder / "checkpoints" / ".1")
    run.push()
    assert entered(url) == [0]
    run.clear()
    run.clear()
    assert run._store.names() == []
