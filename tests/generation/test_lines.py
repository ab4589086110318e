"""The text that is shown, and the line that a rollout folder takes back."""

import io
import json

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.generation import command
from grre_jax.rollouts.tools.exchange.importers import import_jsonl
from grre_jax.sampling import Piece
from grre_jax.sampling.text.stop_strings import StopStrings


class Terminal(io.StringIO):
    def isatty(self):
        return True


def decode(tokens):
    return bytes(tokens).decode("utf-8", errors="replace")


def piece(text, finish="", first=-0.5):
    scores = np.float32(first) - np.arange(len(text), dtype=np.float32)
    logprobs = {"sampling": scores, "behavior": scores - 1, "policy": scores - 2}
    return Piece(0, 0, np.array(list(text.encode()), np.int32), logprobs, finish)


def test_a_terminal_gets_no_control_characters():
    text = "a\x1b[2Jb\tc\nd\x07\x9b"
    line = {"completions": [{"text": text, "tokens": [1], "finish_reason": "stop"}], "position": 0}
    for out, shown in (
        (Terminal(), "a\ufffd[2Jb\tc\nd\ufffd\ufffd\n"),
        (io.StringIO(), f"{text}\n"),
    ):
        command.show(line, 1, out)
        assert out.getvalue() == shown


def test_pieces_make_a_completion():
    pieces = [piece("ye", first=float("nan")), piece("s.", "stop", -0.1)]
    found = command.completion(pieces, decode, StopStrings(["."], decode))
    tokens = [121, 101, 115, 46]
    ended = {"text": "yes", "tokens": tokens, "finish_reason": "stop", "stop_string": "."}
    # The shortest decimals of float32, which give it back.
    assert found.items() >= ended.items() and found["sampling_logprobs"] == [None, None, -0.1, -1.1]
    assert found["logprobs"][2:] == pytest.approx([-1.1, -2.1])
    assert found["policy_logprobs"][2:] == pytest.approx([-2.1, -3.1])


def test_rollouts_take_a_line_with_rewards(tmp_path):
    stops = StopStrings((), decode)
    completions = [command.completion([piece(x, "stop")], decode, stops) for x in ("ab", "cde")]
    for reward, one in enumerate(completions):
        one["reward"] = reward
    line = {"prompt": "q", "answer": 3, "prompt_tokens": [113], "temperature": 0.5, "top_k": 3}
    (tmp_path / "o.jsonl").write_text(json.dumps(line | {"completions": completions}) + "\n")
    import_jsonl(tmp_path / "o.jsonl", tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    assert group.texts == ["ab", "cde"] and group.tokens.tolist() == [97, 98, 99, 100, 101]
    np.testing.assert_allclose(group.behavior_logprobs, [-1.5, -2.5, -1.5, -2.5, -3.5])
    assert (group.temperature, group.top_k, group.answer) == (0.5, 3, "3")
    assert group.finish_reasons == ["stop", "stop"] and group.rewards.tolist() == [0, 1]
