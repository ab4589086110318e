"""What is read as calls; which calls are the same is in cases.tsv."""

import json

import pytest

from grre_jax.tasks import Question
from grre_jax.tasks.verifiers.function_calls import Call, NotCalls, read_calls, verify_calls


def test_values():
    text = r"""[Do It(a=1, b=-2.5, c="x\ty", d=[1, (2, 3)], e={"k": null}, f=True, class='é')]"""
    values = {"a": 1, "b": -2.5, "c": "x\ty", "d": [1, [2, 3]], "e": {"k": None}, "f": True}
    assert read_calls(text) == [Call("Do It", values | {"class": "é"})]
    assert read_calls("[f(3, 'x\ny', b=1)]") == [Call("f", {"0": 3, "1": "x\ny", "b": 1})]


DEEP = "[" * 39 + "]" * 39  # 41 brackets with those of a call and of its list


def test_more_than_is_compared():
    assert len(read_calls("[" + "f()," * 64 + "]")) == 64
    for text in (
        "[" + "f()," * 65 + "]",
        "Words: " + "[f()]" * 65,
        "x" * 10_001,
        f"[f(a={DEEP})]",
        "[f(a=" + "[" * 4000 + "]" * 4000 + ")]",
    ):
        with pytest.raises(NotCalls):
            read_calls(text)
    deep = json.dumps({"name": "f", "arguments": f'{{"a": {DEEP}}}'})
    assert verify_calls(Question("q", "asked", "[f(a=1)]"), deep).reward == 0


def test_an_answer_that_cannot_be_read_makes_nothing_right():
    for text, well_formed in (("[f(x=1)]", 1.0), ("Words.", 1.0), ("[f(x=1", 0.0)):
        verdict = verify_calls(Question("q", "asked", "[f(x=1"), text)
        assert verdict.components == {"correct": 0.0, "well_formed": well_formed}
