"""What is read as calls; which calls are the same is in verifier_cases.tsv."""

import pytest

from grre_jax.tasks.function_calls import Call, NotCalls, read_calls, same_calls


def test_values():
    text = r"""[Do It(a=1, b=-2.5, c="x\ty", d=[1, (2, 3)], e={"k": null}, f=True, class='é')]"""
    values = {"a": 1, "b": -2.5, "c": "x\ty", "d": [1, [2, 3]], "e": {"k": None}, "f": True, "class": "é"}
    assert read_calls(text) == [Call("Do It", values)]


def test_positional_values_are_named_by_their_place():
    assert read_calls("[f(3, 'x', b=1)]") == [Call("f", {"0": 3, "1": "x", "b": 1})]


@pytest.mark.parametrize("text", ["", "words", "[1, 2]", "{}", "see f (x)", "[a](b)", "{'a': 1}", "x = [y for y in z]"])
def test_texts_without_calls(text):
    assert read_calls(text) == []


@pytest.mark.parametrize(
    "text", ["[f(a=1)", "[f(a=b)]", "[f(a=1), 2]", "[f(a=1+1)]", "[f(a=1, a=2)]", "x" * 10_001, "[f(a=" + "[" * 50 + "]" * 50 + ")]"]
)
def test_broken_calls(text):
    with pytest.raises(NotCalls):
        read_calls(text)


def test_a_thought_that_was_cut_off_calls_nothing():
    assert read_calls("<think>[f(a=1)]") == [] == read_calls("<think>x</think><think>[f(a=1)]")
    assert read_calls("<think>[g()]</think>[f(a=1)]") == [Call("f", {"a": 1})]


def test_same_calls_are_counted():
    one, other = Call("f", {"a": 1}), Call("f", {"a": 1.0})
    assert same_calls([one, one], [one, other]) and not same_calls([one, one], [one]) and not same_calls([], [one]) and same_calls([], [])
    nan = Call("f", {"a": float("nan")})
    assert same_calls([nan], [Call("f", {"a": float("nan")})]) and not same_calls([one], [nan])
