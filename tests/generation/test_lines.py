"""The text that is shown, and a completion of a line."""

import io

import numpy as np

from grre_jax import sampling
from grre_jax.generation import command
from grre_jax.sampling.text.stop_strings import StopStrings


class Terminal(io.StringIO):
    def isatty(self):
        return True


def decode(tokens):
    return bytes(tokens).decode("utf-8", errors="replace")


def test_a_terminal_gets_no_control_characters():
    text = "a\x1b[2Jb\tc\nd\x07\x9b"
    line = {"completions": [{"text": text, "tokens": [1], "finish_reason": "stop"}], "position": 0}
    for out, shown in (
        (Terminal(), "a\ufffd[2Jb\tc\nd\ufffd\ufffd\n"),
        (io.StringIO(), f"{text}\n"),
    ):
        command.show(line, 1, out)
        assert out.getvalue() == shown


def test_a_completion_of_a_line():
    scores = np.array([[[-0.1, np.nan, -2, -3]]], np.float32)
    drawn = sampling.Samples(
        np.array([[list(b"yes.")]]),
        lengths=np.array([[4]]),
        finish_reasons=np.array([[sampling.FINISH_STOP]]),
        sampling_logprobs=scores,
        behavior_logprobs=scores - 1,
        policy_logprobs=scores - 2,
    )
    found = command.completion(drawn, (0, 0), decode, StopStrings(["."], decode))
    ended = {"text": "yes", "finish_reason": "stop", "stop_string": "."}
    # The shortest decimals of float32, which give it back.
    numbers = {"tokens": [121, 101, 115, 46], "sampling_logprobs": [-0.1, None, -2, -3]}
    assert found.items() >= (ended | numbers).items()
    assert found["logprobs"][2:] == [-3, -4] and found["policy_logprobs"][2:] == [-4, -5]
