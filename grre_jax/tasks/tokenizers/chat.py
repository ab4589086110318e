"""Between text and token ids: a character tokenizer, and Hugging Face tokenizers with their chat
templates.

The end of a completion is a token like any other: it is sampled, scored and trained on, so
`encode_completion` ends with it. `transformers` and `tokenizers` are imported when a tokenizer of
theirs is loaded or saved, not before.
"""

import datetime
import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from grre_jax.domains import checked
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import Tokens, read_object, require
from grre_jax.tasks.judging import error_words
from grre_jax.tasks.task import Question
from grre_jax.tasks.tokenizers.characters import (
    CharTokenizer,
    Message,
    content_digest,
)

# Fields of a message that templates may leave out: its text, whose absence is empty, and names that
# lead back to a call.
_UNWRITTEN = frozenset(("role", "content", "name", "id", "tool_call_id"))
Tools = Literal["template", "system"]  # what declares the functions of a conversation
Functions = list[dict[str, Any]] | None  # definitions, as transformers takes them
# The tags of Hermes and Qwen.
_TOOLS_MESSAGE = """You can call functions. These are their definitions:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments in tags:
<tool_call>
{"name": NAME, "arguments": {...}}
</tool_call>"""
# Enough text to tell apart tokenizers that share a vocabulary and merge or normalise differently.
_PROBE = "The 3 répliques cost $1,234.50 — naïve 中文 😀\n\n  def f(x):\treturn x**2  # İstanbul"


_FOREIGN = ("user", "tool", "function", "ipython", "observation")  # roles that are not trusted
# Cuts control tokens in foreign text: not a character, so no text holds it.
_BREAK = "\ufdd0"
# In place of what an assistant sampled. With a letter, which templates that change text change.
SAMPLED = "a\ufdd1"
# What strftime_now returns, the default of Llama 3's template: a prompt is the same on any day.
DATE = datetime.date(2024, 7, 26)
_DATE = re.compile(r"""strftime_now\s*\(\s*(?P<quote>['"])(?P<format>.*?)(?P=quote)\s*\)""")


class ChatTokenizer:
    """The tokenizer of a Hugging Face model folder, with its chat template if it has one.

    A prompt is one user turn (after a system turn, if there is a system prompt) up to where the
    assistant begins to speak. A folder without a template gives the prompt as it is, with the
    beginning-of-text token if the tokenizer writes one. Nothing is ever looked up or downloaded
    outside the folder.
    """

    def __init__(
        self,
        folder: str | Path,
        system_prompt: str | None = None,
        tools: str = "template",
        template_arguments: dict[str, Any] | None = None,
    ):
        """Loads a tokenizer.

        Args:
            folder: holds tokenizer.json (or tokenizer.model, or vocab.json), and perhaps
                generation_config.json and config.json.
            system_prompt: replaces the template's own; None leaves that as it
                is.
            tools: "template" if the chat template writes the definitions of functions, "system"
                for templates that do not: a system message then holds them in <tools> tags, and
                the answer to calls is a user's message in <tool_response> tags.
            template_arguments: variables of the chat template, such as {"enable_thinking": False}.

        Raises:
            DataError: the folder, its tokenizer files or an end-of-text token are missing, or a
                file cannot be read.
            UsageError: a system prompt, tools in a system message or template arguments are given
                and the tokenizer has no template; or the template does not read an argument.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():  # transformers would search its cache for the name
            raise DataError(f"{folder}: expected the folder of a tokenizer, got none.")
        import transformers

        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(self.folder), local_files_only=True, trust_remote_code=False
            )
            self.vocab_size = max(self.tokenizer.get_vocab().values()) + 1  # ids may have gaps
            self.tokenizer.encode(_PROBE)  # some files load and cannot be used
        except Exception as error:  # whatever the libraries raise for files that they cannot use
            raise DataError(
                f"The tokenizer in {self.folder} cannot be loaded ({error_words(error)})."
            ) from error
        self.has_template = bool(self.tokenizer.chat_template)
        self.tools = checked("tools", Tools, tools)
        if not self.has_template and (system_prompt is not None or tools != "template"):
            raise UsageError(
                f"system_prompt, tools: expected a chat template, got the tokenizer in {folder}"
                " without one."
            )
        self.system_prompt = system_prompt
        self.template_arguments = template_arguments or {}
        # What the template does not read would change nothing. Dumped, since a tokenizer may have
        # several templates, by name.
        words = re.findall(r"\w+", json.dumps(self.tokenizer.chat_template))
        if unread := self.template_arguments.keys() - words:
            raise self._error(f"does not read model.template_arguments {', '.join(unread)}")
        self.eos_ids = self._find_eos()
        pad = self.tokenizer.pad_token_id
        self.pad_id = self.eos_ids[0] if pad is None else int(pad)

    @property
    def fingerprint(self) -> str:
        """Of vocabulary, template, its arguments, system prompt, end tokens and the ids of a probe
        text.
        """
        vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
        content = [
            "transformers",
            vocabulary,
            self.tokenizer.chat_template or None,
            self.system_prompt,
            self.eos_ids,
            self._plain_ids(_PROBE),
        ]
        if self.template_arguments:  # otherwise the fingerprint of data sets stored before
            content.append(sorted(self.template_arguments.items()))
        return content_digest(content)

    def encode_prompt(self, question: Question | str) -> list[int]:
        """The ids of a prompt, template included."""
        text = question.prompt if isinstance(question, Question) else question
        if not self.has_template:
            return self.encode_text(text)
        messages = getattr(question, "messages", None) or [{"role": "user", "content": text}]
        # A template writes the beginning-of-text token itself.
        return self._rendered_ids(self._render(messages))

    def encode_messages(self, messages: list[Message], tools: Functions = None) -> list[int]:
        """The ids of a conversation, up to where the assistant begins to speak.

        The system prompt, if there is one, goes before it unless it begins with its own.

        Args:
            messages: {"role": "system", "user" or "assistant", "content": text} each.
            tools: definitions for the template, as transformers takes them.

        Raises:
            UsageError: the model has none, or it refuses the conversation or leaves out the
                tools.
        """
        if tools:
            self._require_written(messages, tools)
        return self._rendered_ids(self._render(messages, tools=tools))

    def encode_observation(
        self,
        messages: list[Message],
        *,
        tools: Functions = None,
        ended: bool = True,
    ) -> list[int]:
        """The ids between an assistant's turn and its next: what the template writes there.

        They are put behind the tokens that were sampled, which stay as they are, also where the
        template would rewrite an earlier turn: those of Qwen3 and R1 drop its thoughts.

        Args:
            messages: the conversation, of which the last message is the observation and the one
                before it the assistant's. The content of every assistant's turn behind the opening
                is `SAMPLED`, which stands for what was sampled.
            tools: definitions for the template.
            ended: the turn has its end token already.

        Raises:
            UsageError: the template changes the opening or the text of a turn, marks no end of a
                turn, or leaves out the observation.
        """
        first = [message["content"] for message in messages].index(SAMPLED)
        opening = self._render(messages[:first], generation=False, tools=tools)
        rendering = self._render(messages, tools=tools)
        _, turn, text = rendering.rpartition(SAMPLED)
        # Some move the system message or the tools to the last user's turn.
        if not (turn and rendering.startswith(opening)):
            raise self._error("rewrites the first messages if others follow")
        if messages[-1]["content"].strip() not in text.replace(_BREAK, ""):
            role = messages[-1]["role"]
            raise self._error(f"leaves out a message of role {role!r}")
        ids = self._rendered_ids(text)
        return ids[self._end_of_turn(ids) if ended else 0 :]

    def encode_conversation(
        self,
        prompt: list[Message],
        completion: list[Message],
        *,
        cut: bool = False,
        tools: Functions = None,
    ) -> tuple[list[int], list[int], list[int]]:
        """Encodes a conversation and marks which of its tokens the assistant wrote.

        The prompt ends where the assistant begins to speak. An assistant's turn ends with its first
        end token, which a policy samples. Everything else (tool results, user turns, the template's
        text between turns) is an observation.

        Args:
            prompt: messages before the completion.
            completion: messages that begin with the assistant's.
            cut: the last message was cut at a token limit, so it gets no end token.
            tools: definitions for the template, as transformers takes them.

        Returns:
            Ids of the prompt, ids of the completion, and its mask: 1 for the assistant's tokens.

        Raises:
            UsageError: no template, or one that refuses the conversation, rewrites earlier turns,
                marks no end of a turn, or omits a field of a message or the tools.
        """
        messages = [*prompt, *completion]
        turns = [n for n in range(len(prompt), len(messages)) if messages[n]["role"] == "assistant"]
        rendering = self._render(messages, generation=False, tools=tools)
        cuts = [self._render(messages[:turn], tools=tools) for turn in turns]
        prompt_ids = self._rendered_ids(cuts[0])
        tokens: list[int] = []
        mask: list[int] = []
        end = 0  # of the last turn, whose following text nothing is conditioned on
        for turn, before, after in zip(turns, cuts, [*cuts[1:], rendering], strict=True):
            piece = after[len(before) :]
            ids = self._rendered_ids(piece)
            size = self._turn_tokens(messages[turn], piece, ids)
            alone = self._render(messages[: turn + 1], generation=False, tools=tools)
            starts = self._rendered_ids(alone[len(before) :])
            if not after.startswith(before) or starts[:size] != ids[:size]:
                raise self._error("rewrites earlier turns once later ones follow")
            end = len(tokens) + size - cut
            tokens += ids
            mask += [1] * size + [0] * (len(ids) - size)
        # A policy's first token never merges with the prompt before it, as the two may in the whole
        # text; what a tokenizer puts before each piece would be in the text of the tokens.
        text = self._shown(self._rendered_ids(rendering))
        if self._shown(prompt_ids + tokens) != text:
            raise self._error("rewrites earlier turns once later ones follow")
        self._require_written(messages, tools)
        if messages[-1]["role"] != "assistant":
            end = len(tokens)
        return prompt_ids, tokens[:end], mask[:end]

    def _require_written(self, messages: list[Message], tools: Functions) -> None:
        """Refuses a template that leaves a tool call out: the policy would learn silence."""

        def text(messages: list[Message], tools: Functions) -> str:
            return self._render(messages, generation=False, tools=tools)

        if tools and text(messages, None) == text(messages, tools):
            raise self._error("leaves out the tools: set model.tools to system")
        for place, message in enumerate(messages):
            written = {key for key, value in message.items() if value}
            for name in sorted(written - _UNWRITTEN):
                less = {key: value for key, value in message.items() if key != name}
                texts = {text([*messages[:place], last], tools) for last in (message, less)}
                if len(texts) == 1:
                    raise self._error(f"leaves out {name!r} of a message")

    def _turn_tokens(self, message: Message, piece: str, ids: list[int]) -> int:
        """Number of leading ids that belong to an assistant's turn, its end token included."""
        content = message.get("content") or ""
        if any(token in self.eos_ids for token in self._plain_ids(content)):
            raise UsageError(f"A message holds an end token in its text: {content[:60]!r}.")
        # Of other fields, such as thoughts, a template may write some before the text.
        plain = message.keys() == {"role", "content"}
        if plain and not piece.startswith((content, content.strip())):
            raise self._error(f"begins an assistant's turn {piece[:40]!r}")
        return self._end_of_turn(ids)

    def _end_of_turn(self, ids: list[int]) -> int:
        """Number of leading ids up to and with the first end token."""
        ends = [place for place, token in enumerate(ids, 1) if token in self.eos_ids]
        if not ends:
            raise self._error(
                "ends an assistant's turn without an end token: set eos_token_id in its"
                " generation_config.json"
            )
        return ends[0]

    def _error(self, what: str) -> UsageError:
        return UsageError(f"The chat template in {self.folder} {what}.")

    def _plain_ids(self, text: str, special: bool = False) -> list[int]:
        """The ids of a text; with those that the tokenizer adds of its own accord if `special`."""
        try:
            text.encode()  # the library fails in ways of its own where this fails
        except UnicodeEncodeError as error:
            raise UsageError(
                f"text: expected characters, got half of a surrogate pair at {error.start}."
            ) from error
        return self.tokenizer.encode(text, add_special_tokens=special)

    def _rendered_ids(self, text: str) -> list[int]:
        """The ids of what `_render` returns: no token spans a _BREAK, which is not encoded."""
        return [token for part in text.split(_BREAK) for token in self._plain_ids(part)]

    def _broken(self, text: str) -> str:
        """Breaks the control tokens in a text, so that they are encoded as ordinary text."""
        for mark in self._control:
            text = text.replace(mark, mark[:1] + _BREAK + mark[1:])
        return text

    @cached_property
    def _opening(self) -> str:
        """What the template writes around an empty question."""
        return self._render([{"role": "user", "content": ""}]) if self.has_template else ""

    @cached_property
    def _control(self) -> list[str]:
        """The tokens that only the template may write: special ones, end tokens, and those that it
        opens a turn with, which are not special in every tokenizer.
        """
        return [
            token.content
            for number, token in self.tokenizer.added_tokens_decoder.items()
            if token.special
            or number in self.eos_ids
            # Not white space and words, which some tokenizers add too.
            or (token.content in self._opening and re.search(r"[^\w\s]", token.content))
        ]

    def mark_in(self, text: str) -> str:
        """A control token of the chat template that a text holds, or ""."""
        written = (mark for mark in self._control if mark in self._opening)
        return next((mark for mark in written if mark in text), "")

    def encode_text(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text without the template, after the beginning-of-text token if there is one.

        Without it if not `special`, and with control tokens in the text as ordinary text: it is an
        environment's.
        """
        if not special:
            return self._rendered_ids(self._broken(text))
        ids = self._plain_ids(text, special=True)
        # A tokenizer set up to end every text would have the model continue after the end.
        while ids and ids[-1] in self.eos_ids and len(ids) > len(self._plain_ids(text)):
            ids.pop()
        return ids

    def encode_completion(self, text: str) -> list[int]:
        """Ids of a completion, ended with an end token; UsageError if it goes on after one."""
        ids = self._plain_ids(text)
        if any(token in self.eos_ids for token in ids[:-1]):
            raise UsageError(f"The completion has an end token in its text: {text[:60]!r}.")
        return ids if ids and ids[-1] in self.eos_ids else [*ids, self.eos_ids[0]]

    def _shown(self, ids: list[int]) -> str:
        # Without the clean-up, which removes spaces that the tokens have.
        return self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without end tokens and padding.

        Other special tokens stay: in some tokenizers <think> and <tool_call> are, and a verifier
        that did not see them would take a thought that was cut off for an answer.
        """
        dropped = {*self.eos_ids, self.pad_id}
        return self._shown([token for token in map(int, ids) if token not in dropped])

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer's files, template included, for a model to be exported with."""
        self.tokenizer.save_pretrained(str(folder))

    def _render(
        self,
        messages: Sequence[Message],
        *,
        generation: bool = True,
        tools: Functions = None,
    ) -> str:
        """A conversation in the template, by default up to where the assistant begins.

        Control tokens in the texts of users and tools are broken by _BREAK, so that they open no
        turn; `_rendered_ids` encodes the result.
        """
        messages = list(map(self._guarded, messages))
        if self.system_prompt is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        if tools and self.tools == "system":
            messages = _with_tools(messages, tools)
            tools = None
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                chat_template=self._dated(tools),
                tools=tools,
                add_generation_prompt=generation,
                tokenize=False,
                **self.template_arguments,
            )
        except Exception as error:  # the template is a program of the folder's own
            raise self._error(f"refuses the conversation ({error_words(error)})") from error

    def _guarded(self, message: Message) -> Message:
        """Returns a message in which a foreign text opens no turn."""
        content = message.get("content") or ""
        if _BREAK in content or (SAMPLED in content and message["role"] != "assistant"):
            raise UsageError("message: expected characters, got U+FDD0 or U+FDD1. Remove it.")
        if content and message["role"] in _FOREIGN:
            return {**message, "content": self._broken(content)}
        return message

    def _dated(self, tools: Functions) -> str:
        """The chat template with its calls of strftime_now replaced by what they return on DATE;
        transformers takes no other clock.
        """
        template = self.tokenizer.get_chat_template(tools=tools)
        template = _DATE.sub(lambda call: repr(DATE.strftime(call["format"])), template)
        if re.search(r"strftime_now\s*\(", template):
            raise UsageError("strftime_now: expected a format in quotes, got another expression")
        return template

    def _find_eos(self) -> tuple[int, ...]:
        """The tokenizer's own end token first, then those that generation stops at."""
        ids = [self.tokenizer.eos_token_id]
        for name in ("generation_config.json", "config.json"):
            path = self.folder / name
            values = read_object(path) if os.path.lexists(path) else {}
            ends = require(values.get("eos_token_id"), Tokens, path, "eos_token_id")
            if ends is not None:
                ids += [ends] if isinstance(ends, int) else ends
                break
        eos_ids = tuple(dict.fromkeys(token for token in ids if token is not None))
        if not eos_ids:
            raise DataError(
                f"{self.folder}: expected an end-of-text token, got none. Set eos_token_id in its"
                " generation_config.json."
            )
        return eos_ids


def _with_tools(messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    """A conversation in which the tools stand in the system message, and their answers in the
    user's.
    """
    # Not `format`: the text has braces of its own.
    system = _TOOLS_MESSAGE.replace("{tools}", json.dumps(tools, ensure_ascii=False))
    if messages[0]["role"] == "system":
        system = f"{messages[0]['content']}\n\n{system}"
        messages = messages[1:]
    written = [{"role": "system", "content": system}]
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            message = {"role": "user", "content": text}
        written.append(message)
    return written


def load_tokenizer(
    folder: str | Path,
    system_prompt: str | None = None,
    tools: str = "template",
    template_arguments: dict[str, Any] | None = None,
) -> CharTokenizer | ChatTokenizer:
    """The tokenizer of a model folder: a CharTokenizer where one was saved, else the Hugging
    Face tokenizer; arguments as of `ChatTokenizer`.

    Raises:
        DataError: the folder or its tokenizer files are missing or unreadable.
        UsageError: as of `ChatTokenizer`.

    Examples:
        >>> from grre_jax import tasks
        >>> tasks.CharTokenizer("0123456789+=$").save("tiny")
        >>> tokenizer = tasks.load_tokenizer("tiny")
        >>> type(tokenizer).__name__, tokenizer.encode_prompt("1+2=")
        ('CharTokenizer', [1, 10, 2, 11])
    """
    characters = CharTokenizer.load(folder)
    if characters is None:
        return ChatTokenizer(folder, system_prompt, tools, template_arguments)
    if system_prompt is not None or tools != "template" or template_arguments:
        raise UsageError(
            "system_prompt, tools, template_arguments: expected a chat template, got the character"
            f" tokenizer in {folder}."
        )
    return characters
