"""What is shown while a completion grows, and lines in the order of the prompts."""

import io
import json

import pytest

from grre_jax.errors import UsageError
from grre_jax.generation import outputs
from grre_jax.generation.options import Options
from grre_jax.generation.prompts import Request
from grre_jax.sampling_params import SamplingParams

REQUEST = Request(0, [1], {"prompt": "q"})


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def decode(tokens):
    return bytes(tokens).decode("utf-8", errors="replace")


def stopping(*stops, **options):
    return Options("m", ("a",), params=SamplingParams(stop=stops), **options)


def shown(text, step, stops=(), out=None):
    """What has been written after each piece of `step` bytes, and in the end."""
    out, options = out or io.StringIO(), stopping(*stops)
    sink, tokens, states = outputs.OneText(decode, out, options), list(text.encode()), []
    for start in range(0, len(tokens), step):
        sink.piece(tokens[start : start + step])
        states.append(out.getvalue())
    sink.ended(REQUEST, 0, outputs.Completion(tokens, finish="stop"))
    sink.close()
    return states, out.getvalue()


def test_text_comes_as_it_is_drawn_in_whole_characters():
    states, end = shown("añ中😀!", 1)
    assert (
        states == ["a", "a", "añ", "añ", "añ", "añ中", "añ中", "añ中", "añ中", "añ中😀", "añ中😀!"]
        and end == "añ中😀!\n"
    )


def test_what_may_be_a_stop_string_waits():
    states, end = shown("so\n\nQuick", 1, ["\n\nQ:"])
    assert (
        states
        == [
            "s",
            "so",
            "so",
            "so",
            "so",
            "so\n\nQu",
            "so\n\nQui",
            "so\n\nQuic",
            "so\n\nQuick",
        ]
        and end == "so\n\nQuick\n"
    )
    states, end = shown("so\n\nQ: no", 2, ["\n\nQ:"])
    assert states == ["so", "so", "so", "so", "so"][: len(states)] and end == "so\n"
    assert shown("so\n\nQ", 1, ["\n\nQ:"])[1] == "so\n\nQ\n"  # it ended and was none


def test_where_nothing_was_drawn_nothing_is_shown():
    out = io.StringIO()
    outputs.OneText(decode, out, stopping()).close()
    assert out.getvalue() == ""


def test_a_character_that_never_ends_is_shown_at_the_end():
    out = io.StringIO()
    sink = outputs.OneText(decode, out, stopping())
    sink.piece(list("a中".encode())[:-1])
    assert out.getvalue() == "a"
    sink.ended(REQUEST, 0, outputs.Completion())
    assert out.getvalue() == "a\ufffd"


def test_a_terminal_gets_no_control_characters():
    text = "a\x1b[2Jb\tc\nd\x07\x9b"
    assert shown(text, 100, out=Terminal())[1] == "a\ufffd[2Jb\tc\nd\ufffd\ufffd\n"
    assert shown(text, 100)[1] == text + "\n"


def test_an_encoding_without_the_character():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
    sink = outputs.Texts(decode, out, stopping(num_samples=2))
    sink.ended(REQUEST, 0, outputs.Completion(list("é".encode()), finish="stop"))
    assert out.buffer.getvalue() == b"--- sample 1 of 2: 2 tokens, stop\n?\n"


def test_several_are_shown_whole_with_their_numbers():
    out = io.StringIO()
    sink = outputs.Texts(decode, out, stopping(".", num_samples=3), 2)
    sink.piece(list(b"[b]8"))
    assert out.getvalue() == ""
    sink.ended(REQUEST, 1, outputs.Completion(list(b"[b]8."), finish="stop"))
    sink.ended(Request(1, [1], {}), 0, outputs.Completion(list(b"9"), finish="length"))
    sink.close()
    assert (
        out.getvalue()
        == "--- prompt 1 of 2, sample 2 of 3: 5 tokens, stop\n[b]8\n--- prompt 2 of 2, sample 1 of"
        " 3: 1 token, length\n9\n"
    )


def test_lines_are_in_the_order_of_the_prompts():
    out, model = io.StringIO(), {"path": "m", "step": 4}
    sink = outputs.JsonLines(decode, out, Options("m", ("a", "b"), num_samples=2), 2, model)
    for position, sample in ((1, 1), (0, 1), (1, 0)):
        sink.ended(
            Request(position, [7], {"prompt": "é"}),
            sample,
            outputs.Completion([48 + 2 * position + sample], finish="stop"),
        )
        assert out.getvalue() == ""
    sink.ended(Request(0, [7], {"prompt": "é"}), 0, outputs.Completion([48], finish="stop"))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [[c["text"] for c in line["completions"]] for line in lines] == [["0", "1"], ["2", "3"]]
    assert (
        [line["position"] for line in lines] == [0, 1]
        and lines[0]["model"] == {"path": "m", "step": 4}
        and '"é"' in out.getvalue()
    )


def test_lines_in_an_encoding_without_the_character():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    sink = outputs.JsonLines(decode, out, stopping())
    sink.ended(
        Request(0, [7], {"prompt": "é"}),
        0,
        outputs.Completion([48], finish="stop"),
    )
    assert json.loads(out.buffer.getvalue())["prompt"] == "é"


def test_an_output_that_exists_is_left_alone(tmp_path):
    (tmp_path / "o.jsonl").write_text("mine")
    with (
        pytest.raises(UsageError, match=r"o\.jsonl exists: choose another file"),
        outputs.opened(str(tmp_path / "o.jsonl")),
    ):
        raise AssertionError
    assert (tmp_path / "o.jsonl").read_text() == "mine"
    with (
        pytest.raises(UsageError, match="does not exist: make it first"),
        outputs.opened(str(tmp_path / "none" / "o.jsonl")),
    ):
        raise AssertionError


def test_what_was_written_before_a_failure_stays_and_an_empty_file_does_not(tmp_path):
    for text in ("", "one line\n"):
        with pytest.raises(KeyboardInterrupt), outputs.opened(str(tmp_path / "o.jsonl")) as out:
            out.write(text)
            raise KeyboardInterrupt
        assert [path.read_text() for path in tmp_path.iterdir()] == [text] * bool(text)
