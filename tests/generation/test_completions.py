"""Completions put together of pieces, and the line that a rollout folder takes back."""

import io
import json

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.generation.options import Options
from grre_jax.generation.outputs import Completion, JsonLines
from grre_jax.generation.prompts import WRITTEN_FIELDS, Request
from grre_jax.rollouts.tools.exchange.importers import import_jsonl
from grre_jax.sampling import Piece
from grre_jax.sampling.text.stop_strings import StopStrings
from grre_jax.sampling_params import SamplingParams


def decode(tokens):
    return "".join(chr(token) for token in tokens)


def piece(text, finish="", first=-0.5):
    scores = np.float32(first) - np.arange(len(text), dtype=np.float32)
    return Piece(
        0,
        0,
        np.array([ord(c) for c in text], np.int32),
        {"sampling": scores, "behavior": scores - 1, "policy": scores - 2},
        finish,
    )


def complete(*pieces):
    completion = Completion()
    for each in pieces:
        completion.add(each)
    return completion


def test_pieces_are_put_together():
    found = complete(piece("ab"), piece("c", "length", -0.1)).as_json(
        decode, StopStrings([], decode)
    )
    assert (found["text"], found["tokens"], found["finish_reason"], found["stop_string"]) == (
        "abc",
        [97, 98, 99],
        "length",
        None,
    )
    assert found["logprobs"] == pytest.approx([-1.5, -2.5, -1.1])
    assert found["sampling_logprobs"] == pytest.approx([-0.5, -1.5, -0.1])
    assert found["policy_logprobs"] == pytest.approx([-2.5, -3.5, -2.1])
    assert (
        json.dumps(found["sampling_logprobs"]) == "[-0.5, -1.5, -0.1]"
    )  # the shortest decimals of float32, which give it back


def test_text_ends_before_a_stop_string_and_tokens_after_it():
    found = complete(piece("ye"), piece("s.", "stop")).as_json(decode, StopStrings(["."], decode))
    assert (found["text"], found["tokens"], found["stop_string"]) == (
        "yes",
        [121, 101, 115, 46],
        ".",
    )
    assert (
        len(found["logprobs"])
        == len(found["sampling_logprobs"])
        == len(found["policy_logprobs"])
        == 4
    )


def test_what_is_not_finite_is_null():
    completion = complete(piece("a", first=float("nan")), piece("b", "stop", first=float("-inf")))
    assert completion.logprobs["sampling"] == [None, None]


def test_a_line_keeps_its_own_fields_and_rollouts_take_it(tmp_path):
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.9)
    options, out = Options("m", ("x",), params=params, num_samples=2), io.StringIO()
    writer = JsonLines(decode, out, options, 1, {"path": "m", "step": None})
    writer._next = 4  # of the prompts before it
    request = Request(4, [113], {"prompt": "q", "answer": 3, "id": "seven"})
    for sample, text in enumerate(("ab", "cde")):
        writer.ended(request, sample, complete(piece(text, "stop")))
    made = json.loads(out.getvalue())
    assert WRITTEN_FIELDS == made.keys() - {"prompt", "answer", "id"}
    assert made["id"] == "seven"
    assert made["position"] == 4
    for reward, completion in enumerate(made["completions"]):
        completion["reward"] = reward
    (tmp_path / "o.jsonl").write_text(json.dumps(made) + "\n")
    import_jsonl(tmp_path / "o.jsonl", tmp_path / "r")
    group = rollouts.read(tmp_path / "r")[0]
    assert group.texts == ["ab", "cde"]
    assert group.tokens.tolist() == [97, 98, 99, 100, 101]
    assert group.prompt_tokens.tolist() == [113]
    np.testing.assert_allclose(group.behavior_logprobs, [-1.5, -2.5, -1.5, -2.5, -3.5])
    assert (group.temperature, group.top_k, group.top_p, group.answer) == (0.5, 3, 0.9, "3")
    assert group.finish_reasons == ["stop", "stop"] and group.rewards.tolist() == [0, 1]
