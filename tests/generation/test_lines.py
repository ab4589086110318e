"""The text that is shown, and a completion of a line."""

import io

from grre_jax import generation


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_no_control_characters():
    text = "a\x1b[2Jb\tc\nd\x07\x9b"
    line = {"completions": [{"text": text, "tokens": [1], "finish_reason": "stop"}], "position": 0}
    for out, shown in (
        (Terminal(), "a\ufffd[2Jb\tc\nd\ufffd\ufffd\n"),
        (io.StringIO(), f"{text}\n"),
    ):
        generation.show(line, 1, out)
        assert out.getvalue() == shown
