"""Chat messages become tokens by the policy's template, with a mask over what the policy did not
write.
"""

import itertools
import json
import re

import pytest

from grre_jax import tasks
from grre_jax.errors import DataError
from grre_jax.rollouts import dataset

from .... import byte_tokenizers
from . import importing

CHATML = (
    "{% if tools %}<|im_start|>tools\n{{ tools[0]['name'] }}<|im_end|>\n{% endif %}{% for message"
    " in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}{% for call in"
    " message.tool_calls or [] %}{{ call | tojson }}{% endfor %}<|im_end|>\n{% endfor %}{% if"
    " add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As chat models whose thoughts are left out of earlier turns.
FORGETS = CHATML.replace(
    "{{ message['content'] }}",
    "{% if loop.last or message['role'] != 'assistant' %}{{ message['content'] }}{% endif %}",
)
NO_TOOLS = CHATML.replace("if tools", "if false")
ASKS = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"
TEXT = "completions[0].text"
OBSERVED = "\n<|im_start|>tool\n42<|im_end|>\n"


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """`load(template, system_prompt=None)`: a tokenizer whose tokens are bytes, two new lines,
    and three special ones.
    """
    pytest.importorskip("transformers")
    newline = "\N{LATIN CAPITAL LETTER C WITH DOT ABOVE}"

    def make(template=CHATML, system_prompt=None):
        folder = tmp_path_factory.mktemp("tokenizer")
        byte_tokenizers.save(folder, template, merges=[(newline, newline)])
        return tasks.load_tokenizer(folder, system_prompt)

    return make


@pytest.fixture(scope="module")
def tokenizer(load):
    return load()


def says(role, content, **more):
    return {"role": role, "content": content, **more}


TURNS = [says("assistant", "call"), says("tool", "42"), says("assistant", "so 42")]


def imported(tmp_path, row, tokenizer=None):
    reader = importing.imported(tmp_path, [row], tokenizer=tokenizer)
    return reader[0], reader


def row_of(text, **more):
    return {"prompt": "q", "completions": [{"text": text, "reward": 1}], **more}


def pieces(tokenizer, group, k=0):
    """What the mask says that the policy wrote, and what it did not, in turns."""
    start, end = group.offsets[k : k + 2]
    marked = zip(group.tokens[start:end].tolist(), group.mask[start:end].tolist(), strict=True)
    runs = itertools.groupby(marked, lambda pair: pair[1])
    return [(tokenizer.tokenizer.decode([token for token, _ in run]), bit) for bit, run in runs]


def test_a_tool_is_masked_and_the_end_of_a_turn_is_not(tmp_path, tokenizer):
    row = {"prompt": [says("user", "q")], "completion": TURNS, "reward": 1.0}
    group, reader = imported(tmp_path, row, tokenizer)
    observed = f"{OBSERVED}<|im_start|>assistant\n"
    assert pieces(tokenizer, group) == [(f"call{END}", 1), (observed, 0), (f"so 42{END}", 1)]
    assert tokenizer.tokenizer.decode(group.prompt_tokens) == ASKS
    assert group.prompt == "q" and group.texts == [tokenizer.decode(group.tokens)]
    stored = {"prompt_messages": row["prompt"], "completion_messages": [TURNS]}
    assert group.extra == stored
    assert reader.datasets[0].metadata["tokenizer"] == tokenizer.fingerprint


def test_a_turn_that_was_cut_has_no_end_and_a_last_observation_stays(tmp_path, tokenizer):
    completions = [
        {"text": TURNS, "reward": 1, "finish_reason": "length"},
        {"text": TURNS[:2], "reward": None},
    ]
    group, _ = imported(tmp_path, {"prompt": "q", "completions": completions}, tokenizer)
    assert pieces(tokenizer, group)[2:] == [("so 42", 1)]
    assert pieces(tokenizer, group, 1) == [(f"call{END}", 1), (OBSERVED, 0)]


def test_one_message_of_each_side_is_the_text_that_training_makes_tokens_of(tmp_path, tokenizer):
    parts = [{"type": "text", "text": text} for text in "ab"]
    row = row_of([says("assistant", parts)], prompt=[says("user", "q", name=None)])
    group, _ = imported(tmp_path, row, tokenizer)
    assert (group.prompt, group.texts, len(group.tokens), group.extra) == ("q", ["ab"], 0, {})


TOKENS = {"text": TURNS, "tokens": [64, 198, 65], "reward": 1}
REFUSED = [  # the template, None for no tokenizer; the row; the field that is named
    (None, row_of(TURNS), "texts"),
    (None, {"messages": [says("user", "q")], "reward": 1}, "messages"),
    (NO_TOOLS, row_of("a", tools=[{"name": "calc"}]), TEXT),
    (FORGETS, row_of(TURNS), TEXT),
    (CHATML, row_of([says("assistant", "a", weight=0)]), TEXT),
    (CHATML, row_of([says("assistant", [{"type": "image_url"}])]), f"{TEXT}[0], part 0"),
    (CHATML, {"prompt": "q", "prompt_tokens": [1], "completions": [TOKENS]}, "mask"),
]


@pytest.mark.parametrize(("template", "row", "field"), REFUSED)
def test_messages_whose_tokens_are_not_certain_are_refused(tmp_path, load, template, row, field):
    tokenizer = load(template) if template else None
    with pytest.raises(DataError, match=f"a.jsonl, line 1: field {re.escape(field)}"):
        imported(tmp_path, row, tokenizer)


def test_system_prompts_and_tools_are_rendered(tmp_path, load):
    tokenizer = load(system_prompt="Think.")
    row = row_of("a", tools=[{"name": "calc"}])
    group, _ = imported(tmp_path, row, tokenizer)
    system = f"<|im_start|>tools\ncalc{END}\n<|im_start|>system\nThink.{END}\n"
    assert tokenizer.tokenizer.decode(group.prompt_tokens) == system + ASKS
    assert pieces(tokenizer, group) == [(f"a{END}", 1)] and group.extra["tools"] == row["tools"]


def test_a_text_keeps_its_own_end_token_and_marks_are_refused(tmp_path, tokenizer):
    _, reader = imported(tmp_path, row_of(f"a{END}"))
    group = dataset.read_tokenised(reader, 0, tokenizer)
    assert pieces(tokenizer, group) == [(f"a{END}", 1)]
    for row in (row_of(f"a{END}\nb"), row_of("a", prompt=ASKS)):
        _, reader = imported(tmp_path, row)
        with pytest.raises(DataError, match="group a:1"):
            dataset.read_tokenised(reader, 0, tokenizer)


def test_a_conversation_is_a_completion_from_the_assistants_first_message_on(tmp_path, tokenizer):
    call = {"function": {"name": "calc", "arguments": '{"x": 6}'}}
    asked = [says("system", "s"), says("user", "q")]
    said = [says("assistant", None, tool_calls=[call]), *TURNS[1:]]
    row = {"messages": [*asked, *said], "reward": 0.5, "is_expert": True}
    group, _ = imported(tmp_path, row, tokenizer)
    called = {"function": {"name": "calc", "arguments": {"x": 6}}}
    assert json.loads(pieces(tokenizer, group)[0][0].removesuffix(END)) == called
    assert group.is_expert.tolist() == [1] and group.extra["prompt_messages"] == asked


def test_tokens_with_a_mask_are_taken_as_they_are(tmp_path, tokenizer):
    """Without the texts that they say."""
    row = {
        "prompt": [says("user", "q")],
        "prompt_tokens": tokenizer.encode_prompt("q"),
        "tokens": tokenizer.encode_completion("abc"),
        "response_mask": [1, 0, 0, 1],
        "reward": 0.75,
    }
    group, _ = imported(tmp_path, row, tokenizer)
    assert group.texts == ["abc"] and group.prompt == "q" and group.mask.tolist() == [1, 0, 0, 1]
    assert group.tokens.tolist() == row["tokens"]
