"""What is shown while a completion grows, and the line that a rollout folder takes back."""

import io
import json

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import UsageError
from grre_jax.generation import outputs
from grre_jax.rollouts.tools.exchange.importers import import_jsonl
from grre_jax.sampling import Piece
from grre_jax.sampling.text.stop_strings import StopStrings


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def decode(tokens):
    return bytes(tokens).decode("utf-8", errors="replace")


def shown(text, step, stops=(), out=None):
    """What has been written after each piece of `step` bytes."""
    out = out or io.StringIO()
    sink = outputs.OneText(decode, StopStrings(stops, decode), out)
    tokens = list(text.encode())
    states = []
    for start in range(0, len(tokens), step):
        sink.piece(tokens[start : start + step], last=start + step >= len(tokens))
        states.append(out.getvalue())
    return states


def piece(text, finish="", first=-0.5):
    scores = np.float32(first) - np.arange(len(text), dtype=np.float32)
    logprobs = {"sampling": scores, "behavior": scores - 1, "policy": scores - 2}
    return Piece(0, 0, np.array(list(text.encode()), np.int32), logprobs, finish)


def test_text_comes_as_it_is_drawn_in_whole_characters():
    states = shown("añ中😀!", 1)
    assert states == ["a", "a", *["añ"] * 3, *["añ中"] * 4, "añ中😀", "añ中😀!"]


def test_what_may_be_a_stop_string_waits():
    states = shown("so\n\nQuick", 1, ["\n\nQ:"])
    assert states[:6] == ["s", "so", "so", "so", "so", "so\n\nQu"]
    assert states[-1] == "so\n\nQuick"
    assert set(shown("so\n\nQ: no", 2, ["\n\nQ:"])) == {"so"}
    assert shown("so\n\nQ", 1, ["\n\nQ:"])[-1] == "so\n\nQ"  # it ended, without the stop string


def test_a_character_that_never_ends_is_shown_at_the_end():
    out = io.StringIO()
    sink = outputs.OneText(decode, StopStrings((), decode), out)
    sink.piece(list("a中".encode())[:-1])
    assert out.getvalue() == "a"
    sink.piece([], last=True)
    assert out.getvalue() == "a\ufffd"


def test_a_terminal_gets_no_control_characters():
    text = "a\x1b[2Jb\tc\nd\x07\x9b"
    assert shown(text, 100, out=Terminal())[-1] == "a\ufffd[2Jb\tc\nd\ufffd\ufffd"
    assert shown(text, 100)[-1] == text
    assert outputs.printable("é", io.TextIOWrapper(io.BytesIO(), encoding="ascii")) == "?"


def test_an_output_that_exists_is_refused(tmp_path):
    (tmp_path / "o.jsonl").write_text("mine")
    for path in (tmp_path / "o.jsonl", tmp_path / "none" / "o.jsonl"):
        with pytest.raises(UsageError, match="--output"):
            outputs.check(str(path))
    for path in ("", "-", str(tmp_path / "new.jsonl")):
        outputs.check(path)


def test_pieces_make_a_completion():
    pieces = [piece("ye", first=float("nan")), piece("s.", "stop", -0.1)]
    found = outputs.completion(pieces, decode, StopStrings(["."], decode))
    tokens = [121, 101, 115, 46]
    ended = {"text": "yes", "tokens": tokens, "finish_reason": "stop", "stop_string": "."}
    # The shortest decimals of float32, which give it back.
    assert found.items() >= ended.items() and found["sampling_logprobs"] == [None, None, -0.1, -1.1]
    assert found["logprobs"][2:] == pytest.approx([-1.1, -2.1])
    assert found["policy_logprobs"][2:] == pytest.approx([-2.1, -3.1])


def test_rollouts_take_a_line_with_rewards(tmp_path):
    stops = StopStrings((), decode)
    completions = [outputs.completion([piece(x, "stop")], decode, stops) for x in ("ab", "cde")]
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
