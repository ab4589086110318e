"""Where a completion ends, against searching the decoded text after every single token."""

from hypothesis import given, settings, strategies as st

from grre_jax.sampling.stop_strings import StopStrings

# Tokens of several characters, and of parts of characters.
PIECES = [b"a", b"b", b"ab", b"ba", b"\n", b"\n\n", b"Q", b"Q:", b"cab", b" ", b"", b"end"]
PIECES += [b".\xe4", b"\xe4\xb8", b"\xb8\xad", b"\xad", b"\xf0\x9f", b"\x98", b"\x80."]
STOPS = ["abba", "\n\nQ:", "bb", "Qend", "cabcab", "b \n", ".", "中", "a中", "😀", "😀."]


def decode(tokens):
    return b"".join(PIECES[token] for token in tokens).decode("utf-8", errors="replace")


def test_cut():
    stops = StopStrings(["\n\nQ:", "end", "\n\nQ"], decode)
    assert stops.cut("a\n\nQ: b end") == ("a", "\n\nQ:")
    assert stops.cut("the end\n\nQ:") == ("the ", "end")
    assert stops.cut("nothing") == ("nothing", None)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(range(len(PIECES))), min_size=1, max_size=20),
    st.lists(st.sampled_from(STOPS), min_size=1),
    st.integers(1, 9),
)
def test_against_searching_after_every_token(tokens, strings, step):
    stops, texts = StopStrings(strings, decode), (decode(tokens[:n]) for n in range(21))
    found = (n for n, text in enumerate(texts) if any(stop in text for stop in strings))
    expected = next(found, None)
    assert stops.kept(tokens) == expected
    # What trajectories do: a call after every chunk with all tokens so far, until one says where
    # the completion ends.
    ends = range(step, len(tokens) + step, step)
    kept = (stops.kept(tokens[:end], searched=end - step) for end in ends)
    assert next((count for count in kept if count is not None), None) == expected
