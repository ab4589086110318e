import os
import threading

from grre_jax import rollouts
from grre_jax.rollouts import incomplete, writer


def test_leftovers_of_killed_writers_are_removed_and_those_of_living_ones_stay(folder, make_group):
    (folder / incomplete.INCOMPLETE / "left").mkdir()
    (folder / incomplete.INCOMPLETE / "left" / writer.DATA_FILE).write_bytes(b"half")
    (folder / incomplete.INCOMPLETE / "note.txt").write_text("foreign")
    with incomplete.staging(folder) as staging:
        assert rollouts.verify(folder).ok and len(rollouts.read(folder)) == 12
        rollouts.write(folder, [make_group(30)], writer="w")
        assert staging.is_dir() and not (folder / incomplete.INCOMPLETE / "left").exists()
    assert not staging.exists() and (folder / incomplete.INCOMPLETE / "note.txt").exists()
    assert len(rollouts.read(folder)) == 13


def test_a_staging_folder_is_removed_whatever_happens_in_it(folder):
    try:
        with incomplete.staging(folder) as place:
            (place / "0").mkdir()
            (place / "0" / "half").write_bytes(b"x")
            raise OSError("disk full")
    except OSError:
        assert not place.exists()


def test_remove_leftovers_says_what_it_removed_and_takes_nothing_twice(folder):
    for name in ("a", "b"):
        (folder / incomplete.INCOMPLETE / name).mkdir()
    found = []
    threads = [threading.Thread(target=lambda: found.extend(incomplete.remove_leftovers(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["a", "b"] and not os.listdir(folder / incomplete.INCOMPLETE)
    assert incomplete.remove_leftovers(folder / "nowhere") == []
