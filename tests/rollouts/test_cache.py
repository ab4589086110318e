import hashlib
import os

import pytest

from grre_jax.rollouts import cache


def fetcher(content, asked):
    def fetch(path):
        asked.append(path)
        path.write_bytes(content)

    return fetch


def digest(content):
    return hashlib.sha256(content).hexdigest()


def test_a_file_is_fetched_once_and_again_when_it_is_damaged(tmp_path):
    kept, asked = cache.Cache(tmp_path / "c"), []
    for _ in range(2):
        path = kept.file("a/b", digest(b"12"), fetcher(b"12", asked))
    assert path == tmp_path / "c" / "a" / "b" and path.read_bytes() == b"12" and len(asked) == 1
    assert not kept.heal("a/b", digest(b"12")) and not kept.heal("a/none", digest(b"12"))
    path.write_bytes(b"13")
    assert kept.heal("a/b", digest(b"12")) and kept.file("a/b", digest(b"12"), fetcher(b"12", asked)).read_bytes() == b"12"


def test_what_is_not_what_was_asked_for_is_not_kept(tmp_path):
    kept = cache.Cache(tmp_path)
    assert kept.file("a", digest(b"12"), fetcher(b"13", [])) is None

    def half(path):
        path.write_bytes(b"1")
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        kept.file("a", digest(b"12"), half)
    assert not list(tmp_path.iterdir())


def test_the_least_recently_used_go_first(tmp_path):
    kept = cache.Cache(tmp_path, limit_bytes=25)
    for moment, name in enumerate("abab"):
        kept.file(name, digest(b"0123456789"), fetcher(b"0123456789", []))
        os.utime(tmp_path / name, (moment, moment))
    os.utime(tmp_path / "a", (9, 9))
    kept.file("c", digest(b"0123456789"), fetcher(b"0123456789", []))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c"}
    kept.file("large", digest(b"x" * 99), fetcher(b"x" * 99, []))  # alone it may be too large
    assert {path.name for path in tmp_path.iterdir()} == {"large"}


def test_where_and_how_large_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(cache.LIMIT_VARIABLE, "7")
    assert cache.standard("x").folder == tmp_path / "rollouts" / "x" and cache.standard("x").limit_bytes == 7
    monkeypatch.delenv(cache.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.standard("x").folder == tmp_path / "xdg" / "grre_jax" / "rollouts" / "x"
