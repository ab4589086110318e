"""Prompts as they are given: encoded as the model reads them, or refused with file and line."""

import json

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.generation import prompts
from grre_jax.generation.options import Options
from grre_jax.sampling_params import SamplingParams

from ..json_values import VALUES


def read(model, *, lines=None, tmp_path=None, **fields):
    if lines is not None:
        (tmp_path / "p.jsonl").write_bytes(lines if isinstance(lines, bytes) else lines.encode())
        fields["input"] = str(tmp_path / "p.jsonl")
    options = Options(str(model), params=SamplingParams(max_new_tokens=8), **fields)
    return prompts.read(options, prompts.find(options))


def text(model, tokens):
    return prompts.find(Options(str(model), ("x",))).tokenizer.tokenizer.decode(tokens)


def test_a_prompt_goes_through_the_chat_template(chat_model):
    first, second = read(chat_model, prompt=("hi", "naïve 中"))
    assert (
        text(chat_model, first.tokens) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [first.position, second.position] == [0, 1] and second.fields == {"prompt": "naïve 中"}


def test_messages(chat_model, tmp_path):
    user = {"role": "user", "content": "a"}
    spoken = {"role": "assistant", "content": "b"}
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    lines = [
        {"messages": [user, spoken, {"role": "user", "content": parts}], "id": 7},
        {"messages": [{"role": "system", "content": "Mine."}, user]},
    ]
    written = "\n\n".join(map(json.dumps, lines))
    found = read(chat_model, lines=written, tmp_path=tmp_path, system="Yours.")
    turns = [text(chat_model, request.tokens).split("<|im_start|>")[1:] for request in found]
    said = ["system\nYours.", "user\na", "assistant\nb", "user\na b"]
    assert turns[0] == [*(f"{turn}<|im_end|>\n" for turn in said), "assistant\n"]
    assert turns[1][0] == "system\nMine.<|im_end|>\n" and len(turns[1]) == 3
    assert [request.fields for request in found] == lines


@pytest.mark.parametrize(
    "line, field",
    [
        (b"{", "JSON"),
        (b"{}", "prompt"),
        (b'{"prompt": "a", "messages": []}', "messages"),
        (b'{"prompt": "a", "seed": 3, "position": 1}', "position, seed"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "message 0, part 0"),
        (b'{"prompt": "\\ud83d"}', "surrogate"),
        (b'{"prompt": "' + b"a" * 150 + b'"}', "160 tokens"),
    ],
)
def test_a_wrong_line_is_named(chat_model, tmp_path, line, field):
    with pytest.raises(DataError, match=rf"p\.jsonl, line 3: .*{field}"):
        read(chat_model, lines=b'{"prompt": "ok"}\n\n' + line + b"\n", tmp_path=tmp_path)


def test_a_model_without_a_template(digit_model, tmp_path):
    """An empty prompt begins with the model's own token."""
    found = read(digit_model, prompt=("3+5>", ""))
    assert [request.tokens for request in found] == [[3, 10, 5, 15], [16]]
    messages = '{"messages": [{"role": "user", "content": "3"}]}'
    for error, named, options in (
        (UsageError, "--prompt 2", {"prompt": ("3", "x")}),
        (DataError, "line 1: field messages", {"lines": messages, "tmp_path": tmp_path}),
        (UsageError, "chat template", {"prompt": ("3",), "system": "Be brief."}),
        (DataError, r"p\.jsonl", {"lines": "\n \n", "tmp_path": tmp_path}),
        (DataError, r"none\.jsonl", {"input": str(tmp_path / "none.jsonl")}),
    ):
        with pytest.raises(error, match=named):
            read(digit_model, **options)


@pytest.mark.parametrize(
    "line",
    [
        *('{"prompt": @}', "@", '{"messages": @}', '{"messages": [@]}'),
        '{"messages": [{"role": "user", "content": @}]}',
        '{"messages": [{"role": "user", "content": "a", "tool_calls": @}]}',
    ],
)
def test_every_json_value_in_a_line(chat_model, tmp_path, line):
    """A line is read, or refused by its number, whatever JSON value is at its @."""
    for value in VALUES:
        try:
            (request,) = read(chat_model, lines=line.replace("@", value), tmp_path=tmp_path)
            assert all(isinstance(token, int) for token in request.tokens)
        except DataError as error:
            assert str(error).startswith(f"{tmp_path / 'p.jsonl'}, line 1: "), str(error)
        except Exception as error:
            raise AssertionError(f"{line.replace('@', value)[:200]}: {error!r}") from error
