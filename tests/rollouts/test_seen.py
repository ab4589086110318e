from grre_jax.rollouts.seen import Seen


def test_what_came_before_is_known_and_another_starts_anew():
    with Seen() as seen:
        assert [seen.before(data) for data in (b"a", b"b", b"a", b"", b"")] == [False, False, True, False, True]
        with Seen() as other:
            assert not other.before(b"a")
