"""Prompts as they are given: encoded as the model reads them, or refused with file and line."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.generation import prompts
from grre_jax.generation.options import Options
from grre_jax.sampling_params import SamplingParams

from ..json_values import VALUES

START, END = 257, 258


def read(model, *, lines=None, tmp_path=None, **fields):
    if lines is not None:
        (tmp_path / "p.jsonl").write_bytes(lines if isinstance(lines, bytes) else lines.encode())
        fields["input"] = str(tmp_path / "p.jsonl")
    options = Options(str(model), params=SamplingParams(max_new_tokens=8), **fields)
    return prompts.read(options, prompts.find(options))


def text(model, tokens):
    return prompts.find(Options(str(model), ("x",))).tokenizer.tokenizer.decode(tokens)


def test_a_prompt_goes_through_the_chat_template(chat_model):
    first, second = read(chat_model, prompts=("hi", "naïve 中"))
    assert (
        text(chat_model, first.tokens) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [first.position, second.position] == [0, 1] and second.fields == {"prompt": "naïve 中"}
    (own,) = read(chat_model, prompts=("hi",), system="Be brief.")
    assert text(chat_model, own.tokens).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi"
    )


def test_a_raw_prompt_is_read_as_it_is(chat_model):
    (raw,) = read(chat_model, prompts=("hi<|im_end|>",), raw=True)
    assert text(chat_model, raw.tokens) == "hi<|im_end|>" and raw.tokens[-1] == END


def test_an_empty_prompt_begins_with_the_models_own_token(chat_model, digit_model):
    assert read(chat_model, prompts=("",), raw=True)[0].tokens == [END]
    assert read(digit_model, prompts=("",))[0].tokens == [16]


def test_messages(chat_model, tmp_path):
    lines = [
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ],
            "id": 7,
        },
        {"messages": [{"role": "system", "content": "Mine."}, {"role": "user", "content": "a"}]},
    ]
    found = read(
        chat_model, lines="\n\n".join(map(json.dumps, lines)), tmp_path=tmp_path, system="Yours."
    )
    turns = [text(chat_model, request.tokens) for request in found]
    assert turns[0].split("<|im_start|>")[1:] == [
        "system\nYours.<|im_end|>\n", "user\na<|im_end|>\n", "assistant\nb<|im_end|>\n", "user\nc<|im_end|>\n", "assistant\n"
    ]  # fmt: skip
    assert turns[1].startswith("<|im_start|>system\nMine.") and "Yours" not in turns[1]
    assert [request.fields for request in found] == lines
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    (joined,) = read(
        chat_model,
        lines=json.dumps({"messages": [{"role": "user", "content": parts}]}),
        tmp_path=tmp_path,
    )
    assert "user\na b<|im_end|>" in text(chat_model, joined.tokens)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"{", "JSON"),
        (b"\xff\xff", "JSON"),
        (b"3", "JSON object"),
        (b"{}", "prompt"),
        (b'{"prompt": "a", "messages": []}', "messages"),
        (b'{"prompt": 3}', "prompt"),
        (b'{"prompt": "a", "seed": 3, "position": 1}', "position, seed"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": [{"role": "user"}]}', "messages"),
        (b'{"messages": [{"role": "user", "content": [1]}]}', "message 0, part 0"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "message 0, part 0"),
        (b'{"prompt": "\\ud83d"}', "surrogate"),
        (b'{"prompt": "' + b"a" * 150 + b'"}', "160 tokens"),
    ],
)
def test_a_wrong_line_is_named(chat_model, tmp_path, line, field):
    with pytest.raises(DataError, match=rf"p\.jsonl, line 3: .*{field}"):
        read(chat_model, lines=b'{"prompt": "ok"}\n\n' + line + b"\n", tmp_path=tmp_path)


def test_a_model_without_a_template(digit_model, chat_model, tmp_path):
    (request,) = read(digit_model, prompts=("3+5>",))
    assert request.tokens == [3, 10, 5, 15]
    with pytest.raises(UsageError, match="--prompt 2"):
        read(digit_model, prompts=("3", "x"))
    line = '{"messages": [{"role": "user", "content": "3"}]}'
    for model, raw in ((digit_model, False), (chat_model, True)):
        with pytest.raises(DataError, match="line 1: field messages"):
            read(model, lines=line, tmp_path=tmp_path, raw=raw)
    with pytest.raises(UsageError, match="no chat template"):
        read(digit_model, prompts=("3",), system="Be brief.")


def test_files_without_prompts(chat_model, tmp_path):
    with pytest.raises(DataError, match=r"p\.jsonl"):
        read(chat_model, lines="\n \n", tmp_path=tmp_path)
    with pytest.raises(DataError, match=r"none\.jsonl"):
        read(chat_model, input=str(tmp_path / "none.jsonl"))


def test_standard_input(chat_model, monkeypatch):
    data = io.BytesIO(b'\xef\xbb\xbf{"prompt": "a"}\n3')
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=data))
    with pytest.raises(DataError, match="standard input, line 2"):
        read(chat_model, input="-")


@pytest.mark.parametrize(
    "line",
    ['{"prompt": @}', '{"prompt": "a", "strange": @}', "@", '{"messages": @}', '{"messages": [@]}'],
)
def test_every_json_value_in_a_line(chat_model, tmp_path, line):
    check_values(chat_model, tmp_path, line)


@pytest.mark.parametrize("field", ["role", "content", "strange", "tool_calls"])
def test_every_json_value_in_a_message(chat_model, tmp_path, field):
    message = {"role": "user", "content": "a"} | {field: "@"}
    check_values(chat_model, tmp_path, json.dumps({"messages": [message]}).replace('"@"', "@"))


def check_values(model, tmp_path, line):
    """A line is read, or refused by its number, whatever JSON value is at its @."""
    for value in VALUES:
        try:
            (request,) = read(model, lines=line.replace("@", value), tmp_path=tmp_path)
            assert all(isinstance(token, int) for token in request.tokens)
        except DataError as error:
            assert str(error).startswith(f"{tmp_path / 'p.jsonl'}, line 1: "), str(error)
        except Exception as error:
            raise AssertionError(f"{line.replace('@', value)[:200]}: {error!r}") from error
