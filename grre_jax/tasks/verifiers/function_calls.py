"""Function calls as models write them: lists `[f(a=1)]`, JSON, and calls that fill a line."""

import ast
import contextlib
import json
import re
import warnings
from typing import Any, NamedTuple

from grre_jax.tasks.task import Question, Verdict
from grre_jax.tasks.verifiers.text import after_thinking

_MOST_CHARACTERS = 10_000
_MOST_BRACKETS = 100
_MOST_DEPTH = 40
_MOST_CALLS = 64
_OPEN = {"(": ")", "[": "]", "{": "}"}
_NAME = r"""(?!["']|\w+\((?:s|es|ies)\))(?:[^()\[\]{}=,;"`<>\n]|[(\[{][\w ]+[)\]}])+"""
_KEY = re.compile(r"\s*([^\s()\[\]{}=,'\"<>]+(?: +[^\s()\[\]{}=,'\"<>!]+)*)\s*=(?!=)")
_MARK = r"```(?:[A-Za-z_+#]+(?=\s))?|</?(?:tool|function)_calls?>|<\|[a-z_]+\|>"
_WORD = r"[\w./\-]+(?=\()"
_START = re.compile(rf"[\[{{]|(?:^|{_MARK})[\s,;]*(?P<word>{_WORD})\((?:\)|{_KEY.pattern})", re.M)
_BARE_END = re.compile(rf"[ \t,;]*(?:\n|\Z|[\[{{]|{_MARK})")
_CALL = re.compile(rf"\s*({_NAME})\(")
_BEGUN = re.compile(rf"\[\s*{_NAME}\((?:{_KEY.pattern}|\s*[\"')]|\s*$)")
_CUT = re.compile(rf"{_BEGUN.pattern}|\[\s*(?!\w+\(e?s\)){_WORD}|[\[{{\s]*\{{\s*[\"']name[\"']")
# A text opens after a bracket, a comma, a colon or an equals sign; apostrophes of words do not.
_QUOTED = re.compile(r"(?<=[(\[{,:=\s])[rR]?(\"\"\"|'''|\"|')(?:\\.|(?!\1)[^\\])*\1", re.S)


class NotCalls(ValueError):
    """A text that looks like calls and cannot be read as such."""


class Call(NamedTuple):
    """One call, with its arguments by name; positional ones by their place, "0", "1", ..."""

    name: str
    arguments: dict[str, Any]


def verify_calls(question: Question, completion: str) -> Verdict:
    """Returns reward 1 if a completion makes the calls of the answer, each as often, else 0; words
    are right if the answer calls nothing. Component "well_formed": whether calls could be read.
    """
    right = well_formed = False
    with contextlib.suppress(NotCalls, RecursionError):
        calls = read_calls(completion)
        well_formed = True
        spoken = bool(after_thinking(completion).strip())
        right = spoken and same_calls(calls, read_calls(question.answer))
    return Verdict(float(right), {"well_formed": float(well_formed)}, correct=right)


def same_calls(given: list[Call], truth: list[Call]) -> bool:
    """Returns True if two lists hold the same calls, in any order; 5 is 5.0, "5" and true not 1."""
    lists = (json.loads(json.dumps(calls), parse_float=_number) for calls in (given, truth))
    one, other = (sorted(json.dumps(call, sort_keys=True) for call in calls) for calls in lists)
    return one == other


def _number(text: str) -> float | int:
    # Not integers as floats: those of 16 digits and more, as ids are, would be rounded.
    number = float(text)
    return int(number) if number.is_integer() else number


def read_calls(text: str) -> list[Call]:
    """Returns the calls of a text, in order; NotCalls if one is broken, or out of bounds."""
    text = after_thinking(text)
    if len(text) > _MOST_CHARACTERS:
        raise NotCalls(f"the text has {len(text)} characters, more than {_MOST_CHARACTERS}")
    masked = _QUOTED.sub(lambda quoted: f"'{'_' * (len(quoted[0]) - 2)}'", text)
    calls: list[Call] = []
    place = brackets = 0
    while match := _START.search(masked, place):
        brackets += 1
        if match["word"]:
            call, stop = _call(text, masked, match.start("word"))
            row = [call] if _BARE_END.match(masked, stop) else []
        else:
            row, stop = _listed_calls(text, masked, match.start())
        calls += row
        place = stop if row else match.end()
        if brackets > _MOST_BRACKETS or len(calls) > _MOST_CALLS:
            raise NotCalls("too many brackets or calls")
    return calls


def _listed_calls(text: str, masked: str, start: int) -> tuple[list[Call], int]:
    """Returns the calls of a bracket and the place behind it."""
    parts, stop = _inside(masked, start)
    if not stop and _CUT.match(text, start):
        raise NotCalls("a call is not closed")
    parts = [(start, stop)] if text[start] == "{" else parts
    calls = [_entry(text, masked, *part) for part in parts]
    if None in calls and (any(calls) or _BEGUN.match(masked, start)):
        raise NotCalls(f"the list {text[start:stop][:80]!r} holds more than calls")
    return [call for call in calls if call], stop


def _entry(text: str, masked: str, start: int, stop: int) -> Call | None:
    """Returns the call that a part of a list is."""
    part = text[start:stop].strip()
    if not part.startswith("{"):
        call = _CALL.match(masked, start, stop)
        call, end = _call(text, masked, start) if call else (None, start)
        return None if masked[end:stop].strip() else call
    key = re.search(r"[\"'](arguments|parameters|args)[\"']\s*:", part)
    entry = _value(part) if key and re.search("[\"']name[\"']", part) else {}
    entry = entry.get("function", entry)
    if not isinstance(entry, dict) or not {"name", key and key[1]} <= entry.keys():
        return None
    values = _value(entry[key[1]]) if isinstance(entry[key[1]], str) else entry[key[1]]
    return Call(str(entry["name"]).strip(), values) if isinstance(values, dict) else None


def _call(text: str, masked: str, start: int) -> tuple[Call, int]:
    """Returns the call that begins at a place, and the place behind it."""
    name = _CALL.match(masked, start)
    parts, stop = _inside(masked, name.end() - 1)
    arguments: dict[str, Any] = {}
    for place, (begin, end) in enumerate(parts):
        named = _KEY.match(masked, begin, end)
        value = _value(text[named.end() if named else begin : end])
        arguments[named[1] if named else str(place)] = value
    if not stop or len(arguments) < len(parts):
        raise NotCalls("a call is not closed, or an argument is given twice")
    return Call(name[1].strip(), arguments), stop


def _value(text: str) -> Any:
    """Returns the value of a literal of JSON or Python."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text, strict=False)
    try:
        with warnings.catch_warnings(action="ignore"):  # "\d" in a text is the model's business
            value = ast.literal_eval(re.sub(r"(?<!\\)\n", r"\\n", text.strip()))
        return json.loads(json.dumps(value))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise NotCalls(f"{text[:80]!r} is not a value: {type(error).__name__}") from None


def _inside(masked: str, start: int) -> tuple[list[tuple[int, int]], int]:
    """Returns the parts between commas of a bracket, and the place behind it; 0 if it is open."""
    awaited: list[str] = []
    edges = [start]
    for place, character in enumerate(masked[start:], start):
        if character in _OPEN:
            awaited.append(_OPEN[character])
        if (character in ")]}" and awaited.pop() != character) or len(awaited) > _MOST_DEPTH:
            break
        if not awaited or (character == "," and len(awaited) == 1):
            edges.append(place)
        if not awaited:
            parts = [(begin + 1, end) for begin, end in zip(edges, edges[1:], strict=False)]
            return parts if masked[slice(*parts[-1])].strip() else parts[:-1], place + 1
    return [], 0
