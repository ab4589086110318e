"""Prompts as they are given: encoded as the model reads them, or refused with file and line."""

import json

import pytest

from grre_jax import generation
from grre_jax.errors import DataError, UsageError
from grre_jax.sampling_params import SampleOptions, SamplingParams

from ..json_values import VALUES


@pytest.fixture
def read(tmp_path):
    """`read(model, lines, **options)`: the requests, and their texts."""

    def requests(model, lines=None, **fields):
        if lines is not None:
            (tmp_path / "p.jsonl").write_text(lines)
            fields["input"] = str(tmp_path / "p.jsonl")
        options = SampleOptions(str(model), params=SamplingParams(max_new_tokens=8), **fields)
        policy = generation.find(options)
        found = generation.read(options, policy)
        return found, [
            policy.tokenizer.tokenizer.decode(request["prompt_tokens"]) for request in found
        ]

    return requests


def test_a_prompt_goes_through_the_chat_template(chat_model, read):
    (first, second), texts = read(chat_model, prompt=("hi", "naïve 中"))
    assert texts[0] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert [first["position"], second["position"]] == [0, 1] and second["prompt"] == "naïve 中"


def test_messages(chat_model, read):
    spoken = {"role": "assistant", "content": "b"}
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    user = {"role": "user", "content": parts}
    lines = [
        {"messages": [user, spoken, user], "id": 7},
        {"messages": [{"role": "system", "content": "Mine."}, user]},
    ]
    found, texts = read(chat_model, "\n\n".join(map(json.dumps, lines)), system="Yours.")
    said = ["system\nYours.", "user\na b", "assistant\nb", "user\na b"]
    begun = "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in said)
    assert texts[0] == f"{begun}<|im_start|>assistant\n"
    assert texts[1].startswith("<|im_start|>system\nMine.<|im_end|>\n<|im_start|>user")
    for request, line in zip(found, lines, strict=True):
        assert request.items() >= line.items()


@pytest.mark.parametrize(
    "line, field",
    [
        ("{", "JSON"),
        ('{"prompt": "a", "messages": []}', "messages"),
        ('{"prompt": "a", "seed": 3, "position": 1}', "position, seed"),
        ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "part 0"),
        ('{"prompt": "\\ud83d"}', "surrogate"),
        ('{"prompt": "' + "a" * 150 + '"}', "160 tokens"),
    ],
)
def test_a_wrong_line_is_named(chat_model, read, line, field):
    with pytest.raises(DataError, match=rf"p\.jsonl, line 3\b.*{field}"):
        read(chat_model, '{"prompt": "ok"}\n\n' + line + "\n")


def test_a_model_without_a_template(digit_model, read):
    """An empty prompt begins with the model's own token."""
    options = SampleOptions(str(digit_model), ("3+5>", ""), params=SamplingParams(max_new_tokens=8))
    found = generation.read(options, generation.find(options))
    assert [request["prompt_tokens"] for request in found] == [[3, 10, 5, 15], [16]]
    messages = '{"messages": [{"role": "user", "content": "3"}]}'
    for error, named, options in (
        (DataError, "--prompt 2", {"prompt": ("3", "x")}),
        (DataError, "line 1: field messages", {"lines": messages}),
        (UsageError, "chat template", {"prompt": ("3",), "system": "Be brief."}),
        (DataError, r"p\.jsonl", {"lines": "\n \n"}),
        (DataError, r"none\.jsonl", {"input": "none.jsonl"}),
    ):
        with pytest.raises(error, match=named):
            read(digit_model, **options)


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": @}',
        "@",
        '{"messages": [{"role": "user", "content": @}]}',
    ],
)
def test_every_json_value_in_a_line(chat_model, read, line):
    """A line is read, or refused by its number, whatever JSON value is at its @."""
    for value in VALUES:
        try:
            read(chat_model, line.replace("@", value))
        except DataError as error:
            assert "p.jsonl, line 1" in str(error), value
