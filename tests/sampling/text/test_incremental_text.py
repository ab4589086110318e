"""Pieces of text against the text decoded at once, with tokenizers that spell one character with
several tokens.
"""

import pytest
from hypothesis import given, settings, strategies as st

from grre_jax.sampling.text.incremental_text import IncrementalText

from ... import byte_tokenizers

TEXT = "naïve 中文 😀 cost $1,234.50\n\n  x**2 👨‍👩‍👧 İ"


def read(decode, tokens, step):
    """The pieces, which make the whole text."""
    reader = IncrementalText(decode)
    pieces = [reader.push(tokens[start : start + step]) for start in range(0, len(tokens), step)]
    pieces.append(reader.finish())
    assert "".join(pieces) == decode(tokens) and reader.finish() == ""
    return pieces


def byte_level():
    """(encode, decode): a token a byte, as GPT-2's family spells what it has no merges for, and
    special tokens.
    """
    pytest.importorskip("tokenizers", reason="comes with transformers")
    tokenizer = byte_tokenizers.backend()
    return lambda text: tokenizer.encode(text).ids, tokenizer.decode


BYTES = byte_level()


def sentence_pieces():
    """(encode, decode): words with a leading "▁", of which a text's first loses its space, and
    bytes for the rest, as Llama 2's family does.
    """
    tokenizers = pytest.importorskip("tokenizers")
    words = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *("▁", "▁cost", "▁na", "ve", "x", "*", "1", "2", "3", "4", "5", "0", ",", "."),
    ]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.Unigram([(word, -1.0 - (len(word) < 3)) for word in words], 0, True)
    )
    decoders = tokenizers.decoders
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens([tokenizers.AddedToken(byte_tokenizers.MARKS[-1], special=True)])
    return lambda text: tokenizer.encode("▁" + text).ids, tokenizer.decode


@pytest.fixture(scope="module", params=[byte_level, sentence_pieces])
def coder(request):
    return request.param()


def test_special_tokens_have_no_text_and_are_no_context(coder):
    """A leading space is dropped at the beginning of a text only; a special token before it does
    not make it one.
    """
    encode, decode = coder
    special, tokens, reader = (
        encode(byte_tokenizers.MARKS[-1])[-1:],
        encode("x cost"),
        IncrementalText(decode),
    )
    at = next(n for n in range(len(tokens)) if decode(tokens[:n]) == "x")
    assert decode(special) == "" and decode([*special, *tokens]) != ""
    assert "".join(map(reader.push, (tokens[:at], special, special, tokens[at:]))) == "x cost"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=30), st.integers(1, 5))
def test_any_bytes(codes, step):
    """Bytes that are no text too: nothing is lost or doubled."""
    read(BYTES[1], codes, step)


def test_the_cost_of_a_token_does_not_grow():
    encode, decode = BYTES
    decoded = []
    reader = IncrementalText(lambda tokens: decoded.append(len(tokens)) or decode(tokens))
    for token in encode("plain words " * 40):
        reader.push([token])
    assert max(decoded) <= 3


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_the_pieces_make_the_text(coder, step):
    encode, decode = coder
    tokens = encode(TEXT)
    assert len(tokens) > 50 and decode(tokens) == TEXT
    assert not any("\ufffd" in piece for piece in read(decode, tokens, step))
