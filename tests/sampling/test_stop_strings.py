"""Where a completion ends, against searching the decoded text after every single token."""

from hypothesis import given, settings, strategies as st

from grre_jax.sampling.stop_strings import StopStrings

WORDS = ["a", "b", "ab", "ba", "\n", "\n\n", "Q", "Q:", "cab", " ", "", "end"]


def decode(tokens):
    return "".join(WORDS[token] for token in tokens)


def decode_bytes(tokens):
    return bytes(tokens).decode("utf-8", errors="replace")


def in_chunks(stops, tokens, step):
    """What trajectories do: a call after every chunk with all tokens so far, until one says where
    the completion ends.
    """
    for stop in range(step, len(tokens) + step, step):
        kept = stops.kept(tokens[:stop], searched=stop - step)
        if kept is not None:
            return kept
    return None


def by_hand(strings, tokens, decode):
    texts = [decode(tokens[:n]) for n in range(len(tokens) + 1)]
    return next((n for n, text in enumerate(texts) if any(s in text for s in strings)), None)


def test_a_stop_string_in_a_token_that_begins_another_character():
    """The token's text is not whole, the stop string in it is."""
    pieces = [b"yes", b".\xe4", b"\xb8\xad"]
    stops = StopStrings(
        ["."], lambda tokens: b"".join(pieces[t] for t in tokens).decode("utf-8", errors="replace")
    )
    assert stops.kept([0, 1, 2]) == 2


def test_cut():
    stops = StopStrings(["\n\nQ:", "end", "\n\nQ"], decode)
    assert stops.cut("a\n\nQ: b end") == ("a", "\n\nQ:")
    assert stops.cut("the end\n\nQ:") == ("the ", "end")
    assert stops.cut("nothing") == ("nothing", None)
    assert stops.cut("end") == ("", "end")


# Tokens, stop strings and how they are decoded: words of several characters, and characters of
# several tokens.
SHORT = st.text("a中文😀é", min_size=1, max_size=3)


CASES = st.one_of(
    st.tuples(
        st.lists(st.sampled_from(range(len(WORDS))), min_size=1, max_size=20),
        st.lists(st.sampled_from(["abba", "\n\nQ:", "bb", "Qend", "cabcab", "b \n"]), min_size=1),
        st.just(decode),
    ),
    st.tuples(
        st.text("a中文😀é", min_size=1, max_size=12).map(lambda text: list(text.encode())),
        st.lists(SHORT, min_size=1, max_size=2),
        st.just(decode_bytes),
    ),
)


@settings(max_examples=200, deadline=None)
@given(CASES, st.integers(1, 9))
def test_against_searching_after_every_token(case, step):
    tokens, strings, decode = case
    stops, expected = StopStrings(strings, decode), by_hand(strings, tokens, decode)
    assert stops.kept(tokens) == in_chunks(stops, tokens, step) == expected
