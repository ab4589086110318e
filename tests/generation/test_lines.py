"""The text that is shown, and the line that a rollout folder takes back."""

import io
import json

import numpy as np
import pytest

from grre_jax import rollouts, sampling
from grre_jax.generation import command
from grre_jax.rollouts.tools.exchange.importers import import_jsonl
from grre_jax.sampling.text.stop_strings import StopStrings


class Terminal(io.StringIO):
    def isatty(self):
        return True


def decode(tokens):
    return bytes(tokens).decode("utf-8", errors="replace")


def samples(*texts, first=-0.5, finish=sampling.FINISH_STOP):
    """Completions of one prompt, on the host."""
    time = max(map(len, texts))
    tokens = np.array([[list(text.encode().ljust(time)) for text in texts]], np.int32)
    scores = np.float32(first) - np.arange(time, dtype=np.float32)
    scores = np.broadcast_to(scores, tokens.shape)
    return sampling.Samples(
        tokens,
        lengths=np.array([[len(text) for text in texts]]),
        finish_reasons=np.full((1, len(texts)), finish),
        sampling_logprobs=scores,
        behavior_logprobs=scores - 1,
        policy_logprobs=scores - 2,
    )


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
    drawn = samples("yes.", first=-0.1)
    found = command.completion(drawn, (0, 0), decode, StopStrings(["."], decode))
    tokens = [121, 101, 115, 46]
    ended = {"text": "yes", "tokens": tokens, "finish_reason": "stop", "stop_string": "."}
    # The shortest decimals of float32, which give it back.
    assert found.items() >= ended.items() and found["sampling_logprobs"] == [-0.1, -1.1, -2.1, -3.1]
    assert found["logprobs"] == pytest.approx([-1.1, -2.1, -3.1, -4.1])
    unknown = command.completion(
        samples("a", first=np.nan), (0, 0), decode, StopStrings((), decode)
    )
    assert unknown["sampling_logprobs"] == [None]


def test_rollouts_take_a_line_with_rewards(tmp_path):
    stops = StopStrings((), decode)
    drawn = samples("ab", "cde")
    completions = [
        command.completion(drawn, (0, number), decode, stops) | {"reward": number}
        for number in range(2)
    ]
    line = {"prompt": "q", "answer": 3, "prompt_tokens": [113], "temperature": 0.5, "top_k": 3}
    (tmp_path / "o.jsonl").write_text(json.dumps(line | {"completions": completions}) + "\n")
    import_jsonl(tmp_path / "o.jsonl", tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    assert group.texts == ["ab", "cde"] and group.tokens.tolist() == [97, 98, 99, 100, 101]
    np.testing.assert_allclose(group.behavior_logprobs, [-1.5, -2.5, -1.5, -2.5, -3.5])
    assert (group.temperature, group.top_k, group.answer) == (0.5, 3, "3")
    assert group.finish_reasons == ["stop", "stop"] and group.rewards.tolist() == [0, 1]
