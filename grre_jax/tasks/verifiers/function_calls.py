"""Function calls as models write them, read without running anything, and compared by name and
arguments.

Read are Python's call syntax as ToolACE and others write it,
`[Get Weather(city="Oslo", days=3), f()]`, with names of several words and most characters, and
JSON: `{"name": ..., "arguments": {...}}` ("parameters" and a "function" around them too, and
Python's quotes), alone, in a list, in ```-fences, in <tool_call> tags, behind <|python_tag|>.
Without brackets around it, a call counts if nothing but calls stands in the text, in its fence or
tags, or on its line. What stands before `</think>` does not count, nor does what stands behind a
`<think>` that is left open.

All calls that a text makes count together, wherever they stand in it, so that several attempts are
not one right call. Two texts make the same calls if each call of the one is a call of the other as
often: the order of calls and of arguments, quotes and white space do not matter. Names and texts
are compared exactly, 5 and 5.0 are equal, "5" and 5 are not, nor are true and 1; the order of a
list counts, that of a dictionary does not.

Texts are bounded (10,000 characters, 40 levels and 100 pairs of brackets, 64 calls) and read by
linear scans, `ast.parse` for single values of bounded depth, and `json`.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grre_jax.tasks.verifiers.final_number import after_thinking

_MOST_CHARACTERS = 10_000
_MOST_BRACKETS = 100  # that are looked at for calls
_MOST_DEPTH = 40
_MOST_CALLS = 64
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
_MARK = re.compile(
    r"```(?:[A-Za-z_+#]+(?=[\s\[{]))?|</?tool_calls?>|</?function_calls?>"
    r"|<\|python_tag\|>|<\|e(?:o[mt]_id|nd_of_text)\|>|<\|im_end\|>"
)
_BETWEEN = re.compile(rf"(?:{_MARK.pattern}|[\s,;])*")  # calls in a row
_BARE_NAME = re.compile(r"[\w./\-]+(?=\()")
_START = re.compile(
    rf"(?P<mark>{_MARK.pattern})|(?m:^)[ \t]*{_BARE_NAME.pattern}|[\[{{]"
)  # where calls may begin
_GAP_IN_BLOCK, _GAP_IN_LINE = re.compile(r"[\s,;]*"), re.compile(r"[ \t,;]*")
_WORDS_IN_BRACKETS = r"[(\[{][^()\[\]{}=,;'\"`<>\n]+[)\]}]"
# Brackets are of the name where others follow: "Posts (v2)(id=7)", "users/{id}(id=7)".
_NAME = re.compile(
    rf"[^\s()\[\]{{}}=,;:'\"`<>](?:[^()\[\]{{}}=,;\"`<>\n]"
    rf"|{_WORDS_IN_BRACKETS}(?=[^()\[\]{{}}=,;\"`<>\n]*[(\[{{]))*"
)
_NAME_IN_BLOCK = re.compile(rf"{_BARE_NAME.pattern}|{_NAME.pattern}(?<!\s)(?=\()")
_ARGUMENT = re.compile(
    r"\s*([^\s()\[\]{}=,'\"]+(?:[ \t]+[^\s()\[\]{}=,'\"<>!]+|\[[\w\-]*\])*)\s*=(?!=)\s*"
)
_PLURAL = re.compile(r"[\w\-]+\((?:s|es|ies)\)")
# How a call begins, however it goes on: with a named argument, or of a name without spaces, with a
# text or nothing. Where no bracket follows that would close it, less will do.
_BEGINS = re.compile(
    rf"\s*(?:{_NAME.pattern}\({_ARGUMENT.pattern}|{_BARE_NAME.pattern}\(\s*[)\"'])"
)
_CUT_OFF = re.compile(
    rf"\[(?:{_BEGINS.pattern}|\s*{_NAME.pattern}\(\s*$"
    rf"|\s*(?!{_PLURAL.pattern}){_BARE_NAME.pattern})"
)
_CUT_OFF_JSON = re.compile(r"[\[{\s]*\{\s*[\"'](?:name|function)[\"']")
_JSON_NAME = re.compile(r"[\"'](?:name|function)[\"']\s*:")
_JSON_ARGUMENTS = re.compile(r"[\"'](?:arguments|parameters|args)[\"']\s*:")
_TEXT = re.compile(
    r"\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*\"\"\"|'''(?:[^'\\]|\\.|'(?!''))*'''|\"(?:[^\"\\]"
    r"|\\.)*\"|'(?:[^'\\]|\\.)*'",
    re.DOTALL,
)
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BREAK, _ESCAPES = re.compile(r"\\.|[\n\r]", re.DOTALL), {"\n": "\\n", "\r": "\\r"}
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_CONSTANTS |= {"True": True, "False": False, "None": None}


class NotCalls(ValueError):
    """A text that looks like calls and cannot be read as such; the message says why."""


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        name: of the function.
        arguments: values by name; positional ones by their place, "0", "1", ...
    """

    name: str
    arguments: dict[str, Any]


def read_calls(text: str) -> list[Call]:
    """The calls that a text makes, in order; [] for a text that makes none.

    Raises:
        NotCalls: something in it begins as a list of calls and is broken, or the text is out of
            bounds.
    """
    text = after_thinking(text)
    if len(text) > _MOST_CHARACTERS:
        raise NotCalls(f"the text has {len(text)} characters, more than {_MOST_CHARACTERS}")
    whole = _calls_in_a_row(text)
    calls = _calls_among_words(text) if whole is None else whole
    if len(calls) > _MOST_CALLS:
        raise NotCalls(f"more than {_MOST_CALLS} calls")
    return calls


def same_calls(given: list[Call], truth: list[Call]) -> bool:
    """Returns True if two lists hold the same calls, in any order."""
    left = list(truth)
    for call in given:
        for place, other in enumerate(left):
            if call.name == other.name and _same(call.arguments, other.arguments):
                del left[place]
                break
        else:
            return False
    return not left


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b or (a != a and b != b)  # NaN
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(one, other) for one, other in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        keys, others = ({(type(key) is bool, key) for key in dictionary} for dictionary in (a, b))
        return keys == others and all(_same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def _calls_in_a_row(text: str) -> list[Call] | None:
    """Calls of a text that is nothing but calls or lists of them; None for another."""
    rows, place = [], _BETWEEN.match(text).end()
    while place < len(text):
        if text[place] in "[{":
            row = _in_brackets(text, place)
        else:
            name = _NAME_IN_BLOCK.match(text, place)
            stop = _closing(text, name.end()) if name else None
            called = text[place : stop + 1] if stop is not None else ""
            row = (called, stop + 1) if _is_call(called) else None
        if row is None:
            return None
        rows.append(row[0])
        place = _BETWEEN.match(text, row[1]).end()
    # Words and a call before a list are words: "I use f(a=1)" is then no name of several words.
    bare = [row for row in rows if isinstance(row, str)]
    if len(bare) < len(rows) and not all(map(_BARE_NAME.match, bare)):
        return None
    # What a bare call holds is read last: if words follow, it need not be a call.
    return [call for row in rows for call in ([_python_call(row)] if isinstance(row, str) else row)]


def _calls_among_words(text: str) -> list[Call]:
    calls, place, looked_at, around = [], 0, 0, False
    # Marks are no brackets: those inside of a call's texts stay as they are.
    while found := _START.search(text, place):
        place, row = found.end(), None
        if found[0] in ("[", "{"):
            looked_at += 1
            if looked_at > _MOST_BRACKETS:
                raise NotCalls(f"the text has more than {_MOST_BRACKETS} brackets")
            row = _in_brackets(text, found.start())
            around = around or row is None  # a bracket that may close behind a later call
            if row and not around and text[row[1] :].lstrip()[:1] in ("]", "}"):
                raise NotCalls("a bracket is closed twice")
        else:
            start = place if found["mark"] else found.start()
            row = _bare_row(text, start, block=bool(found["mark"]))
        if row:
            calls, place = calls + row[0], row[1]
    return calls


def _in_brackets(text: str, start: int) -> tuple[list[Call], int] | None:
    """Calls of the bracket at `start` and the place after it; None for none; NotCalls if broken."""
    stop = _closing(text, start)
    if stop is None:
        if _CUT_OFF.match(text, start) or _CUT_OFF_JSON.match(text, start):
            raise NotCalls("a call is not closed")
        return None
    calls = _bracketed(text[start : stop + 1])
    return (calls, stop + 1) if calls else None


def _bare_row(text: str, start: int, block: bool) -> tuple[list[Call], int] | None:
    """Calls without brackets around them that fill a block (up to the next mark) or a line, and
    the place after them; None if there is anything else.

    What fills a block may be without arguments, what fills a line must have named ones: words, code
    and mathematics have calls of other shapes.
    """
    gap = _GAP_IN_BLOCK if block else _GAP_IN_LINE
    names = _NAME_IN_BLOCK if block else _BARE_NAME
    calls = []
    place = gap.match(text, start).end()
    while name := names.match(text, place):
        stop = _closing(text, name.end())
        empty = block and stop is not None and not text[name.end() + 1 : stop].strip()
        if not empty and not _ARGUMENT.match(text, name.end() + 1):
            return None
        if stop is None:
            raise NotCalls("a call is not closed")
        calls.append(text[place : stop + 1])
        place = gap.match(text, stop + 1).end()
    ends = "[{" if block else "[{\n"
    at_end = place == len(text) or text[place] in ends or _MARK.match(text, place)
    return ([_python_call(call) for call in calls], place) if calls and at_end else None


def _bracketed(text: str) -> list[Call] | None:
    """Calls of a balanced [...] or {...}; None for none; NotCalls if it is broken inside."""
    said = _json(text)
    named = _JSON_NAME.search(text) and _JSON_ARGUMENTS.search(text)
    if said is None and named and re.match(r"[\[\s]*\{", text):
        said = _python_value(text)
    if said is not None:
        return _json_calls(said)
    if not text.startswith("["):
        return None
    parts = _top(text[1:-1])
    shapes = [part for part in parts if _is_call(part)]
    if len(shapes) < len(parts) and (shapes or any(_BEGINS.match(part) for part in parts)):
        raise NotCalls(f"the list {text[:80]!r} holds more than calls")
    return [_python_call(part) for part in shapes] or None


def _is_call(text: str) -> bool:
    """True for name(...), unless the name is of words or a plural such as "name(s)"."""
    name = _NAME.match(text)
    if not name or text[name.end() : name.end() + 1] != "(":
        return False
    if not text.endswith(")") or _closing(text, name.end()) != len(text) - 1:
        return False
    inner = text[name.end() + 1 : -1]
    if not inner.strip() or _ARGUMENT.match(inner):
        return True
    return re.fullmatch(r"[\w./\-]+", name[0]) is not None and not _PLURAL.fullmatch(text)


def _python_call(text: str) -> Call:
    """Of "name(argument=value, ...)"."""
    name = _NAME.match(text)
    inner = text[name.end() + 1 : -1]
    arguments: dict[str, Any] = {}
    for place, part in enumerate(_top(inner)):
        named = _ARGUMENT.match(part)
        key = named[1] if named else str(place)
        if key in arguments:
            raise NotCalls(f"the argument {key!r} is given twice")
        arguments[key] = _python_value(part[named.end() :] if named else part)
    return Call(name[0].strip(), arguments)


def _python_value(text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a text is the model's business
            tree = ast.parse(_on_one_line(text.strip()), mode="eval")
        return _literal(tree.body)
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError) as error:
        raise NotCalls(f"{text[:80]!r} is no value: {type(error).__name__}") from None


def _on_one_line(text: str) -> str:
    """With line breaks inside of quoted texts written as escapes, as Python needs them."""
    if "\n" not in text and "\r" not in text:
        return text
    return _TEXT.sub(
        lambda quoted: _BREAK.sub(lambda found: _ESCAPES.get(found[0], found[0]), quoted[0]), text
    )


def _literal(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # JSON writes a character beyond 16 bits as two escapes, which Python leaves apart.
        return _PAIR.sub(
            lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), node.value
        )
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _literal(node.operand)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(map(_literal, node.keys), map(_literal, node.values), strict=True)
        return _unique(list(pairs))
    raise ValueError(f"a {type(node).__name__} is no literal")


def _json(text: str) -> Any:
    """Returns the value of a JSON text; None if it is not JSON (or null)."""
    try:
        return json.loads(text, object_pairs_hook=_unique, strict=False)  # line breaks in texts
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _json_calls(said: Any) -> list[Call] | None:
    """The calls that JSON says, None if it says none. Raises NotCalls for broken ones."""
    entries = said if isinstance(said, list) else [said]
    calls = [_json_call(entry) for entry in entries]
    if not any(calls):
        return None
    if not all(calls):
        raise NotCalls(f"the list {str(said)[:80]!r} holds more than calls")
    return calls


def _json_call(entry: Any) -> Call | None:
    if isinstance(entry, dict) and isinstance(entry.get("function"), dict):
        entry = entry["function"]
    entry = entry if isinstance(entry, dict) else {}
    found = [key for key in ("arguments", "parameters", "args") if key in entry]
    if not found or not isinstance(entry.get("name"), str):
        return None
    arguments = entry[found[0]]
    if isinstance(arguments, str):
        text = arguments.strip()  # of no more levels than elsewhere
        closed = text.startswith("{") and _closing(text, 0) is not None
        arguments = _json(text) if closed else None
    if not isinstance(arguments, dict):
        raise NotCalls(f"the arguments {str(entry[found[0]])[:80]!r} are no object")
    return Call(entry["name"].strip(), arguments)


def _top(text: str) -> list[str]:
    """The parts between commas outside of brackets and quotes, without white space around."""
    parts, start = [], 0
    for place, depth in _outside_quotes(text):
        if depth == 0 and text[place] == ",":
            parts.append(text[start:place].strip())
            start = place + 1
    parts.append(text[start:].strip())
    return parts if parts[-1] else parts[:-1]


def _closing(text: str, start: int) -> int | None:
    """Index at which the bracket at `start` is closed; None if it is not, within bounds."""
    for place, depth in _outside_quotes(text, start):
        if depth == 0 and place > start:
            return place
        if depth > _MOST_DEPTH:
            return None
    return None


def _outside_quotes(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """(place, depth after it) of each character that is not inside quotes, up to a bracket that
    closes one of another kind.

    A quote, perhaps threefold or behind an "r", begins a text only after an opening, a comma, a
    colon or an equals sign.
    """
    awaited, quote, before, place = [], "", "", start  # the closing brackets, the innermost last
    while place < len(text):
        character = text[place]
        if quote:
            if character == "\\":
                place += 1
            elif text.startswith(quote, place):
                place += len(quote) - 1
                quote = ""
        elif character in "\"'" and before in "([{,:=":
            quote = character * 3 if text.startswith(character * 3, place) else character
            before = character
            place += len(quote) - 1
        elif character in "rR" and before in "([{,:=" and text[place + 1 : place + 2] in ("'", '"'):
            yield place, len(awaited)
        else:
            if character in _OPEN:
                awaited.append(_OPEN[character])
            elif character in _CLOSE and (not awaited or awaited.pop() != character):
                return
            yield place, len(awaited)
            before = before if character.isspace() else character
        place += 1
