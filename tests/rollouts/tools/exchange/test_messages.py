"""Chat messages become tokens by the policy's template, with a mask over what the policy did not
write.
"""

import json
import tempfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts, tasks
from grre_jax.errors import DataError
from grre_jax.rollouts import views
from grre_jax.rollouts.tools.exchange import importers, rows

from .... import byte_tokenizers
from ....tasks.datasets import published_samples
from .test_json_walk import VALUES

CHATML = (
    "{% if tools %}<|im_start|>tools\n{{ tools[0]['name'] }}<|im_end|>\n{% endif %}{% for message"
    " in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}{% for call in"
    " message.tool_calls or [] %}[{{ call['name'] }}]{% endfor %}<|im_end|>\n{% endfor %}{% if"
    " add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As chat models whose thoughts are left out of earlier turns.
FORGETS = CHATML.replace(
    "{{ message['content'] }}",
    "{% if loop.last or message['role'] != 'assistant' %}{{ message['content'] }}{% endif %}",
)
MERGES = CHATML.replace("{% for message", "{{ messages | length }}{% for message", 1)
THINKS = CHATML.replace(
    "{{ message['content'] }}",
    "{% if message['role'] == 'assistant' %}<think>{% endif %}{{ message['content'] }}",
)
NO_END = CHATML.replace("<|im_end|>", "")
ROLE = "<|im_start|>{}\n"
END = "<|im_end|>"


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


def imported(tmp_path, row, tokenizer=None, kind="jsonl", **options):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    path = folder / ("a.jsonl" if kind == "jsonl" else "a.parquet")
    if kind == "jsonl":
        path.write_text(json.dumps(row))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    rollouts.import_rows(kind, path, folder / "r", tokenizer=tokenizer, **options)
    reader = rollouts.read(folder / "r")
    return reader[0], reader


def row_of(text, **more):
    return {"prompt": "q", "completions": [{"text": text, "reward": 1}], **more}


def pieces(tokenizer, group, k):
    """What the mask says that the policy wrote, and what it did not, in turns."""
    start, end = group.offsets[k : k + 2]
    found = []
    for token, bit in zip(
        group.tokens[start:end].tolist(), group.mask[start:end].tolist(), strict=True
    ):
        if not found or found[-1][1] != bit:
            found.append(([], bit))
        found[-1][0].append(token)
    return [(tokenizer.tokenizer.decode(tokens), bit) for tokens, bit in found]


def turns_of(group, tokenizer, k=0):
    """Text and reward of each turn, after a check that its tokens have that text."""
    first, tokens = int(group.turn_counts[:k].sum()), group.tokens[group.offsets[k] :]
    spans = zip(group.turns(k), group.turns(k, "turn_texts"), strict=True)
    texts = []
    for (start, end), (begin, stop) in spans:
        texts.append(group.texts[k][begin:stop])
        assert tokenizer.decode(tokens[start:end]) == texts[-1]
    rewards = group.turn_rewards[first : first + len(texts)].tolist()
    return list(zip(texts, rewards, strict=True))


OBSERVATION = f"\n{ROLE.format('tool')}42{END}\n{ROLE.format('assistant')}"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "trl"])
def test_a_tool_is_masked_and_the_end_of_a_turn_is_not(tmp_path, tokenizer, kind):
    row = {"prompt": [says("user", "6*7?")], "completion": TURNS, "reward": 1.0}
    group, reader = imported(tmp_path, row, tokenizer, kind)
    assert pieces(tokenizer, group, 0) == [(f"call{END}", 1), (OBSERVATION, 0), (f"so 42{END}", 1)]
    assert (
        tokenizer.tokenizer.decode(group.prompt_tokens)
        == f"{ROLE.format('user')}6*7?{END}\n{ROLE.format('assistant')}"
    )
    whole = tokenizer.tokenizer.apply_chat_template([says("user", "6*7?"), *TURNS], tokenize=False)
    assert tokenizer.tokenizer.decode([*group.prompt_tokens, *group.tokens]) + "\n" == whole
    assert group.prompt == "6*7?" and group.texts == [tokenizer.decode(group.tokens)]
    assert turns_of(group, tokenizer) == [("call", 0.0), ("so 42", 1.0)]
    assert group.extra["prompt_messages"] == [says("user", "6*7?")]
    assert group.extra["completion_messages"] == [TURNS]
    assert reader.datasets[0].metadata["tokenizer"] == tokenizer.fingerprint


def test_a_turn_that_was_cut_has_no_end_and_a_last_observation_stays(tmp_path, tokenizer):
    row = {
        "prompt": "q",
        "completions": [
            {"text": TURNS, "reward": 1, "finish_reason": "length"},
            {"text": TURNS[:2], "reward": None},
            {"text": "plain", "reward": 0},
        ],
    }
    group, _ = imported(tmp_path, row, tokenizer)
    assert turns_of(group, tokenizer) == [("call", 0.0), ("so 42", 1.0)]
    assert turns_of(group, tokenizer, 1) == [("call", 0.0)]  # without a reward
    assert pieces(tokenizer, group, 0) == [(f"call{END}", 1), (OBSERVATION, 0), ("so 42", 1)]
    assert pieces(tokenizer, group, 1) == [
        (f"call{END}", 1),
        (f"\n{ROLE.format('tool')}42{END}\n", 0),
    ]
    assert pieces(tokenizer, group, 2) == [(f"plain{END}", 1)] and group.texts[2] == "plain"


def test_one_message_of_each_side_is_the_text_that_training_makes_tokens_of(tmp_path, tokenizer):
    row = row_of([says("assistant", "a")], prompt=[says("user", "q", name=None)])
    text, _ = imported(tmp_path, row)
    assert (text.prompt, text.texts, text.lengths.tolist(), text.extra) == ("q", ["a"], [0], {})
    group, reader = imported(tmp_path, row, tokenizer)
    assert group == text
    trained = views.read_tokenised(reader, 0, tokenizer)
    rendered, _ = imported(tmp_path, row | {"tools": [{"name": "none"}]}, tokenizer)
    assert trained.tokens.tolist() == rendered.tokens.tolist() == tokenizer.encode_completion("a")


def test_tokens_of_messages_need_a_mask_and_win(tmp_path, tokenizer):
    completion = {"text": TURNS, "reward": 1, "tokens": [64, 65, 66], "mask": [1, 0, 1]}
    row = {"prompt": "q", "prompt_tokens": [64], "completions": [completion]}
    group, _ = imported(tmp_path, row, tokenizer)
    assert (group.tokens.tolist(), group.mask.tolist(), group.texts) == (
        [64, 65, 66],
        [1, 0, 1],
        [tokenizer.decode([64, 65, 66])],
    )
    del completion["mask"]
    with pytest.raises(DataError, match="field mask:"):
        imported(tmp_path, row, tokenizer)
    completion["tokens"] = [64, 65, 260]
    with pytest.raises(DataError, match="field tokens: .*260"):
        imported(tmp_path, row, tokenizer)


@pytest.mark.parametrize(
    ("prompt", "text", "field"),
    [
        ([says("system", "s"), says("user", "q")], "a", "prompt"),
        ([says("system", "s")], "a", "prompt"),
        ([says("user", "q", images=[1])], "a", "prompt"),
        ("q", TURNS, "texts"),
        ("q", [says("assistant", "a", tool_calls=[{}])], "texts"),
    ],
)
def test_what_only_a_template_makes_tokens_of_needs_the_tokenizer(tmp_path, prompt, text, field):
    for tokenizer in (None, tasks.CharTokenizer()):
        with pytest.raises(DataError, match=f"a.jsonl, line 1: field {field}: .*--tokenizer"):
            imported(tmp_path, row_of(text, prompt=prompt), tokenizer)


@pytest.mark.parametrize(
    ("template", "text", "message"),
    [
        (FORGETS, TURNS, "begins an assistant's turn"),
        (
            FORGETS,
            [says("assistant", "a", thought="b"), *TURNS[1:]],
            "rewrites earlier turns",
        ),
        (MERGES, TURNS, "rewrites earlier turns"),
        (THINKS, TURNS, "begins an assistant's turn '<think>call"),
        (NO_END, TURNS, "ends an assistant's turn with none of the end tokens"),
        (CHATML, [says("assistant", f"a{END}b"), *TURNS[1:]], "holds an end token in its text"),
        (CHATML, [says("assistant", "\ud800"), *TURNS[1:]], "half of a surrogate pair"),
        (CHATML, [says("assistant", "", tool_calls=3)], "refuses the conversation"),
        (
            CHATML,
            [says("assistant", "", function_call={"name": "f"})],
            "leaves out 'function_call' of a message of role 'assistant'",
        ),
        (
            CHATML,
            [says("assistant", "a", reasoning_content="b"), *TURNS[1:]],
            "leaves out 'reasoning_content'",
        ),
        (
            CHATML.replace("tool_calls", "calls"),
            [says("assistant", None, tool_calls=[{}]), *TURNS[1:]],
            "leaves out 'tool_calls'",
        ),
        (CHATML, [says("assistant", "a", weight=0)], "weight 0"),
        (CHATML, [says("user", "a")], "user"),
        (CHATML, [says("assistant", ["a"])], "part 0 of its content"),
        (CHATML, [], r"\[\]"),
    ],
)
def test_messages_whose_tokens_are_not_certain_are_refused(tmp_path, load, template, text, message):
    with pytest.raises(DataError, match=rf"line 1: field completions\[0\].text.*{message}"):
        imported(tmp_path, row_of(text), load(template))


def test_system_prompts_and_tools_are_rendered(tmp_path, load):
    tokenizer, row = load(system_prompt="Think."), row_of("a", tools=[{"name": "calc"}])
    group, _ = imported(tmp_path, row, tokenizer)
    text = (
        f"{ROLE.format('tools')}calc{END}\n{ROLE.format('system')}Think.{END}\n"
        f"{ROLE.format('user')}q{END}\n{ROLE.format('assistant')}"
    )
    assert tokenizer.tokenizer.decode(group.prompt_tokens) == text
    assert pieces(tokenizer, group, 0) == [(f"a{END}", 1)] and group.extra == {
        "tools": row["tools"],
        "prompt_messages": "q",
        "completion_messages": ["a"],
    }
    other, _ = imported(tmp_path, row | {"tools": "a calculator"}, tokenizer)
    assert (other.prompt, other.extra, len(other.tokens)) == ("q", {"tools": "a calculator"}, 0)
    with pytest.raises(DataError, match="line 1: field tools: .*--tokenizer"):
        imported(tmp_path, row)
    with pytest.raises(DataError, match=r"field completions\[0\].text"):
        imported(tmp_path, row, load(CHATML.replace("if tools", "if false")))


def test_a_turn_that_begins_with_spaces_is_what_a_policy_samples(tmp_path, tokenizer):
    """In the text of the whole conversation the first of them merge with the end of the
    template's.
    """
    text = "\n\n\n x"
    group, _ = imported(tmp_path, row_of([says("assistant", text), *TURNS[1:]]), tokenizer)
    sampled = tokenizer.encode_completion(text)
    assert group.tokens[: len(sampled)].tolist() == sampled
    assert group.prompt_tokens.tolist() == tokenizer.encode_prompt("q")
    whole = tokenizer.tokenizer.apply_chat_template(
        [says("user", "q"), says("assistant", text)], tokenize=False
    )
    assert (
        tokenizer.tokenizer.encode(whole, add_special_tokens=False)[: len(group.prompt_tokens)]
        != group.prompt_tokens.tolist()
    )


def test_a_text_that_ends_with_its_end_token_has_one(tmp_path, tokenizer):
    _, reader = imported(tmp_path, row_of(f"a{END}"))
    group = views.read_tokenised(reader, 0, tokenizer)
    assert pieces(tokenizer, group, 0) == [(f"a{END}", 1)]
    _, reader = imported(tmp_path, row_of(f"a{END}\nb"))
    with pytest.raises(DataError, match="group a:1"):
        views.read_tokenised(reader, 0, tokenizer)


def test_parquets_fields_of_other_rows_are_not_rendered(tmp_path, load):
    tokenizer = load(CHATML.replace("[{{ call['name'] }}]", "{{ call | tojson }}"))
    calls = [says("assistant", "", tool_calls=[{"name": name, name: 1}]) for name in "ab"]
    rows = [{"prompt": "q", "completion": [call], "reward": 1.0} for call in calls]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    rollouts.import_rows("parquet", tmp_path / "a.parquet", tmp_path / "r", tokenizer=tokenizer)
    group = rollouts.read(tmp_path / "r")[0]
    assert [json.loads(text) for text in group.texts] == [
        {"name": "a", "a": 1},
        {"name": "b", "b": 1},
    ]


@pytest.mark.parametrize("field", ["role", "content", "tool_calls", "strange"])
def test_every_json_value_in_a_message(tokenizer, field):
    for side, role in (("prompt", "system"), ("text", "assistant")):
        for value in VALUES:
            message = json.dumps(says(role, "a") | {field: "@"}).replace('"@"', value)
            try:
                messages = json.loads(f"[{message}]")
            except (ValueError, RecursionError):
                continue
            text = {"text": messages} if side == "text" else {}
            row = {"prompt": "q", "completions": [{"text": "a", "reward": 1} | text]}
            row |= {"prompt": messages} if side == "prompt" else {}
            try:
                made = importers._placed("x, line 1", rows.to_group, row, "x:1", "", tokenizer)
                assert len(made.mask) == len(made.tokens)
            except DataError as error:
                assert str(error).startswith("x, line 1: ")
                assert "prompt" in str(error) or "text" in str(error)
            except Exception as error:
                raise AssertionError(f"{message[:200]}: {error!r}") from error


def test_a_template_is_not_applied_twice(tmp_path, tokenizer):
    row = row_of("a", prompt=f"{ROLE.format('user')}q{END}\n")
    with pytest.raises(DataError, match=r"line 1: field prompt: .*<\|im_start\|>"):
        imported(tmp_path, row, tokenizer)
    _, reader = imported(tmp_path, row)
    with pytest.raises(DataError, match=r"the prompt of group a:1 .* holds '<\|im_start\|>'"):
        views.read_tokenised(reader, 0, tokenizer)


def test_a_conversation_is_a_completion_from_the_assistants_first_message_on(tmp_path, load):
    call = {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"x": 6}'}}
    asked = [says("system", "s"), says("user", "q")]
    said = [says("assistant", None, tool_calls=[call]), says("tool", "42"), says("user", "so?")]
    said.append(says("assistant", "42"))
    template = CHATML.replace("[{{ call['name'] }}]", "{{ call.function.arguments | tojson }}")
    tokenizer = load(template)
    row = {"messages": [*asked, *said], "reward": 0.5, "is_expert": True}
    group, _ = imported(tmp_path, row, tokenizer)
    assert turns_of(group, tokenizer) == [('{"x": 6}', 0.0), ("42", 0.5)]
    assert group.is_expert.tolist() == [1] and group.extra["prompt_messages"] == asked
    assert group.extra["completion_messages"][0][0]["tool_calls"][0]["function"] == {
        "name": "calc",
        "arguments": {"x": 6},
    }


@pytest.mark.parametrize("messages", [[says("user", "q")], [], "q"])
def test_a_conversation_without_an_assistant_is_refused(tmp_path, tokenizer, messages):
    with pytest.raises(DataError, match="line 1: field messages"):
        imported(tmp_path, {"messages": messages, "reward": 1}, tokenizer)


def test_conversations_of_toolace_are_demonstrations(tmp_path, tokenizer):
    record = published_samples.toolace_record(7)
    path = published_samples.toolace(tmp_path, 8)
    rollouts.import_rows("toolace", path, tmp_path / "r", tokenizer=tokenizer)
    group = rollouts.read(tmp_path / "r")[7]
    spoken = [turn["value"] for turn in record["conversations"] if turn["from"] == "assistant"]
    assert turns_of(group, tokenizer) == [(spoken[0], 0.0), (spoken[1], 1.0)]
    assert group.is_expert.tolist() == [1] and group.sources == ["toolace"]
    task = tasks.build("toolace", path=path, held_out=8, turns="first")
    assert group.question_id in {question.question_id for question in task.evaluation(8)}


VERL = {
    "prompt": "raw_prompt",
    "prompt_tokens": "prompt_ids",
    "tokens": "response_ids",
    "mask": "response_mask",
    "logprobs": "response_logprobs",
    "reward": "reward_score",
    "turn_rewards": "turn_scores",
    "group": "uid",
}


@pytest.mark.parametrize(
    ("scores", "rewards"), [([], [0, 0.75]), ([0.25], [0.25, 0.5]), ([0.25, 0.25], [0.25, 0.25])]
)
def test_trajectories_of_verl_are_read_under_its_names(tmp_path, tokenizer, scores, rewards):
    written = [*tokenizer.encode_completion("ab"), *tokenizer.encode_text("\nx", special=False)]
    ids = [*written, *tokenizer.encode_completion("c")]
    row = {
        "uid": "u",
        "raw_prompt": [says("user", "q")],
        "prompt_ids": tokenizer.encode_prompt("q"),
        "response_ids": ids,
        "response_mask": [1, 1, 1, 0, 0, 1, 1],
        "response_logprobs": [-1.0, -1, -1, 0, 0, -1, -1],
        "reward_score": 0.75,
        "turn_scores": scores,
        "num_turns": 4,
    }
    group, _ = imported(tmp_path, row, tokenizer, mapping=VERL)
    assert turns_of(group, tokenizer) == [("ab", rewards[0]), ("c", rewards[1])]
    assert group.texts == ["ab\nxc"] and group.prompt == "q" and group.extra["num_turns"] == 4
    assert group.behavior_logprobs.tolist() == row["response_logprobs"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"turn_rewards": [1, 2, 3]}, "turn_rewards: .*2 turns"),
        ({"turn_rewards": [1, float("nan")]}, "turn_rewards: "),
        ({"turn_rewards": [1, 2], "text": "other"}, r"completions\[0\].text: "),
        ({"turn_rewards": ["1"]}, "turn_rewards: .*'1'"),
    ],
)
def test_rewards_of_turns_that_do_not_fit_are_refused(tmp_path, tokenizer, more, message):
    completion = {"text": "a\nb", "reward": 1, "tokens": [64, 188, 65], "mask": [1, 0, 1]}
    ids = tokenizer.encode_text("a\nb", special=False)
    row = {
        "prompt": "q",
        "prompt_tokens": ids,
        "completions": [completion | {"tokens": ids} | more],
    }
    with pytest.raises(DataError, match=message):
        imported(tmp_path, row, tokenizer)
    if more["turn_rewards"] == [1, 2, 3]:
        with pytest.raises(DataError, match="turn_rewards: .*--tokenizer"):
            imported(tmp_path, row)


def test_turns_without_a_text_between_them_end_with_their_end_tokens(tmp_path, tokenizer):
    ids = [*tokenizer.encode_completion("a"), *tokenizer.encode_completion("b")]
    completion = {"reward": 1, "tokens": ids, "turn_rewards": [0.5, 0.25]}
    row = {"prompt": "q", "prompt_tokens": ids[:1], "completions": [completion]}
    group, _ = imported(tmp_path, row, tokenizer)
    assert turns_of(group, tokenizer) == [("a", 0.5), ("b", 0.25)]


def test_content_parts_of_text_are_joined(tmp_path):
    def row(*parts):
        return {
            "prompt": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}],
            "completion": [{"role": "assistant", "content": parts}],
            "reward": 1,
        }

    text = {"type": "text", "text": "c"}
    group, _ = imported(tmp_path, row(text))
    assert (group.prompt, group.texts) == ("ab", ["c"])
    image = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(
        DataError, match=r"line 1: field completions\[0\].text\[0\], part 1 .*'image_url'"
    ):
        imported(tmp_path, row(text, image))
