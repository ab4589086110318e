r"""Finds the final answer of a mathematical completion; `equality` then judges it.

The last `\boxed{...}` (or `\fbox`) counts. Boxes with nothing but "and", "or", commas, white space
or names ("$x=\boxed{3}$ or $x=\boxed{5}$") between them are one answer of several parts. Without a
box what the last `<answer>...</answer>` holds is taken for all of the completion, and then: what
follows the last "the answer is", "Answer:" or "####", all of it in "$5$ or $6$". Without such a
form: the last line, if it ends in mathematics between dollar signs that is not denied ("it is not
$5$") or is nothing but an expression, or if it is the only line. A box that was never closed says
nothing. Where the completion has `</think>`, only what comes after the last one counts; one that
ends between `<think>` and its end says nothing.

A given answer that is an expression of the question as it stands there answers nothing (`is_copy`).

A few linear scans of at most the last 200,000 characters: no completion takes long or raises.
"""

import functools
import re
from fractions import Fraction

from grre_jax.tasks.verifiers import final_number
from grre_jax.tasks.verifiers.math.notation import normalised, squeezed, words
from grre_jax.tasks.verifiers.math.parts import bare, cut_at, in_braces, sides_of, ungrouped
from grre_jax.tasks.verifiers.math.units import without_unit

_MOST_CHARACTERS = 200_000
_LONGEST_ANSWER = 1_000  # characters; what is longer is no answer
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;*&]|\\[()\[\],;\\"
    r" ]|\\(?:q?quad|lor|vee|land|wedge)(?![A-Za-z])|\\text\s?\{\s*,?\s*(?:and|or)\s*\}"
    r"|\b(?:and|or|maybe|perhaps|possibly)\b"
    r"|(?<![A-Za-z])[A-Za-z](?:_\{?[0-9A-Za-z]\}?)?\s?=)*",
    re.IGNORECASE,
)
_AFTER_BARE_BOX = re.compile(r"\s?(-?[0-9][0-9.,/]*|[A-Za-z])")
_MATH_FIRST = re.compile(
    r"[\s*_:=]*(?:\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(([^$]+?)\\\)|\\\[([^$]+?)\\\])", re.DOTALL
)
_MATH_LAST = re.compile(
    r"(?:\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(((?:(?!\\\().)+?)\\\)"
    r"|\\\[((?:(?!\\\[).)+?)\\\])[\s.*!]{0,8}$",
    re.DOTALL,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
# "$x$ = 5", "$50$%", "$5$ or $6$" and "$5$ cm, maybe $6$ cm" go on after their first mathematics.
_GOES_ON = re.compile(
    r"\s{0,3}=|\s?\\?%"
    r"|\*{0,2}\s{0,3}(?:[A-Za-z]{1,3}(?![A-Za-z])\s?(?=[,;(]|(?:and"
    r"|or)\s))?(?:[,;(]\s{0,3})?(?:(?:and|or|also|maybe|perhaps|possibly"
    r"|alternatively)(?![A-Za-z])[\s,]{1,3}){0,3}\*{0,2}(?:\$|\\\()"
    r"|\s{0,3}[,(]?\s{0,3}(?:and|or)\s{1,3}-?[0-9]",
    re.IGNORECASE,
)
_AND_BEFORE = re.compile(
    r"(?:\$[^$\n]+\$|\\\((?:(?!\\\()[^\n])+\\\))\s{0,3}(?:(,)\s{0,3})?(?:(and|or)\s{1,3})?$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot)|n['’]t)\s+(?:(?:be|equal|equals|to|simply|just|exactly"
    r"|necessarily)\s+){0,3}$",
    re.IGNORECASE,
)
_LONGEST_LIST = 200  # characters of mathematics with "and" or "or" between, before the last
_EMPHASIS = re.compile(r"(?<![\w*)\]}])(\*{1,2})(?=[^\s*])([^*]+)(?<=\S)\1(?![\w*(])")
_ASIDE = re.compile(
    r"(?<=[^\s,]),?(?:\s(?:and|but))?\s(?:not|rather\sthan|instead\sof|because|since|which)(?!\w)",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_MOST_PIECES = 400  # expressions of a question that are looked at
_MATHEMATICS = re.compile(
    r"\$\$([^$]{1,1000})\$\$|\$([^$]{1,1000})\$|\\\(((?:(?!\\[()]).){1,1000})\\\)"
    r"|\\\[((?:(?!\\[\[\]]).){1,1000})\\\]",
    re.DOTALL,
)
_ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\s?\{(?:align|aligned|equation|gather|multline|split)\*?\}"
)
_BETWEEN_PIECES = re.compile(r"\\text\s?\{[^{}]*\}|\\q?quad(?![A-Za-z])|\\\\|&")
# Of text without dollar signs: what is between words and punctuation. sqrt(16) is no word.
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z({])|[:?!\n]|[.,;](?=\s|$)")
_FRACTION = re.compile(r"\\frac\{([0-9A-Za-z.]+|\\pi)\}\{([0-9A-Za-z.]+|\\pi)\}")
# 2+3(4), \sqrt{(180)} and \sin(60) for 2+3*4, \sqrt{180} and \sin60.
_TIMES_NUMBER = re.compile(r"(?<=[0-9])\(([0-9.]+)\)")
_IN_BOTH = re.compile(r"\{\(([^(){}]*)\)\}")
_SINGLE_ARGUMENT = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc|ln|log(?:_(?:[0-9A-Za-z]"
    r"|\{[0-9A-Za-z]+\}))?))\(([^()+\-*/=,]+)\)"
)
_NO_EXPRESSION = re.compile(r"[=<>,&]|\\(?:le|ge|ne|in|approx|pm|mp|begin)(?![A-Za-z])")
_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "and", "inf"}


def final_expression(completion: str) -> str | None:
    """The answer as it was written, or None if the completion gives none; see the module's text.

    Never raises.
    """
    text = final_number.after_thinking(completion)[-_MOST_CHARACTERS:]
    found = _boxed(text)
    if found is None:
        text = _tagged(text)
        found = _said(text)
    if found is None:
        found = _last_line(text)
    found = found.strip() if found is not None else ""
    return found if 0 < len(found) <= _LONGEST_ANSWER else None


def _boxed(text: str) -> str | None:
    """The contents of the last boxes, joined by commas; None where there is no box."""
    spans: list[tuple[int, int]] = []  # of the outermost boxes
    for start, stop in final_number.boxes(text):
        if stop < 0:
            bare = _AFTER_BARE_BOX.match(text, start)
            if bare is None:
                continue
            start, stop = bare.span(1)
        while spans and spans[-1][0] >= start:
            spans.pop()
        spans.append((start, stop))
    if not spans:
        return None
    last = [spans.pop()]
    while spans:
        start, stop = spans[-1]
        opening = text.rfind("\\", 0, last[0][0])  # of \boxed
        gap = text[stop:opening].removeprefix("}")
        if len(gap) > 60 or not _BETWEEN_BOXES.fullmatch(gap):
            break
        last.insert(0, spans.pop())
    parts = list(dict.fromkeys(text[start:stop].strip() for start, stop in last))
    return ", ".join(parts)


def _tagged(text: str) -> str:
    """Returns the content of the last closed `<answer>`, or the text itself without one."""
    stop = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(0, stop))
    return text[start + len("<answer>") : stop] if start >= 0 else text


def _said(text: str) -> str | None:
    """The text after the last explicit form ("the answer is", "####") that has any."""
    for start, form in final_number.spoken_forms(text):
        said = text[start : start + _LONGEST_ANSWER]
        mathematics = _MATH_FIRST.match(said)
        if mathematics and not _GOES_ON.match(said, mathematics.end()):
            return _inside(mathematics)
        line = _EMPHASIS.sub(r"\2", said.split("\n", 1)[0]).lstrip("=").strip(" \t*_:=`")
        if not line and form != "phrase":  # "Answer:" on a line of its own
            line = said.lstrip().lstrip("*_: \n").split("\n", 1)[0]
            line = _EMPHASIS.sub(r"\2", line).strip(" \t*_:`")
        end = _SENTENCE_END.search(line)
        line = line[: end.start()] if end else line
        aside = _ASIDE.search(line)
        line = line[: aside.start()] if aside else line
        line = line.strip(' \t*_`"')  # what stood before the full stop
        if line:
            return line
    return None


def _last_line(text: str) -> str | None:
    lines = text.strip().rsplit("\n", 1)
    line = lines[-1].strip(" \t*_`")
    if not line or len(line) > _LONGEST_ANSWER or "\\boxed" in line or "\\fbox" in line:
        return None
    # In a display of several lines the last line is only its end.
    end = text.rstrip()[-_LONGEST_ANSWER:]
    mathematics = _MATH_LAST.search(end)
    if mathematics:
        first, joined = mathematics.start(), True
        while joined and mathematics.start() - first < _LONGEST_LIST:  # "$1$, $2$ or $3$"
            joined = _AND_BEFORE.search(end, max(0, first - _LONGEST_LIST), first)
            if joined and not joined[2] and (not joined[1] or first == mathematics.start()):
                joined = None
            first = joined.start() if joined else first
        if _DENIED.search(end, max(0, first - 40), first):
            return None
        if first < mathematics.start():
            return end[first:].rstrip(" \t\n.*!")
        return _inside(mathematics)
    alone = len(lines) == 1 and len(line) <= 60
    return line if alone or all(word in _FUNCTIONS for word in _WORD.findall(line)) else None


def _inside(mathematics: re.Match) -> str:
    """The text between dollar signs or their like."""
    return next(group for group in mathematics.groups() if group is not None)


def is_copy(given: str, truth: str, question: str) -> bool:
    r"""Returns True if a given answer is an expression of the question as it stands there, and the
    right answer is not written so.

    So "Simplify $\frac{60}{12}$" is not answered by \frac{60}{12}, though that is the same number
    as the right 5. How an expression is typed does not count: spaces, sizes, signs of
    multiplication, 60/12 for \frac{60}{12}, 5.0 for 5.

    Args:
        given: what `final_expression` found.
        truth: the right answer.
        question: what the model was asked.
    """
    if words(normalised(given)) is not None:
        return False
    text = normalised(given)
    if not _writings(text, 1).isdisjoint(_writings(normalised(truth))):
        return False
    said = {_key(text), _key(sides_of(text)[-1]), _key(without_unit(text)[0])}
    return not said.isdisjoint(_asked(question))


def _writings(text: str, last_sides: int = 0) -> set[str]:
    """Returns the ways to write an answer: as a whole, each of its sides, without its unit or
    percent sign, and as a choice's letter or value.

    Args:
        text: the answer, normalised.
        last_sides: how many of its sides count, from the last; 0 for all.
    """
    choice = re.fullmatch(
        r"\\text\s?\{\s?\(?([A-J])\)?[.:]?\s?\}(.+)|\(?([A-J])[).:](.+)", text, re.DOTALL
    )
    said = [part for part in choice.groups() if part] if choice else []
    pieces = [text, *sides_of(text)[-last_sides:], *said]
    cores = (without_unit(piece.removesuffix("\\%"))[0] for piece in pieces)
    return {_key(piece) for piece in (*pieces, *cores)}


@functools.lru_cache(maxsize=64)
def _asked(question: str) -> frozenset[str]:
    """Expressions of a question: between dollar signs or words, lines, sides, parts of lists."""
    question = _ENVIRONMENT.sub(" ", question[-_MOST_CHARACTERS:])
    found = list(map(_inside, _MATHEMATICS.finditer(question)))
    found += [piece for expression in found for piece in _BETWEEN_PIECES.split(expression)]
    found += _PROSE.split(_MATHEMATICS.sub("\n", question))
    pieces: set[str] = set()
    for piece in dict.fromkeys(piece.strip() for piece in found):
        if not 0 < len(piece) <= _LONGEST_ANSWER or len(pieces) > _MOST_PIECES:
            continue
        text = normalised(piece.rstrip("?").strip())
        for part in (text, *cut_at(text, ",")):
            pieces.update(map(_key, (part, *sides_of(part))))
    return frozenset(pieces - {""})


def _key(text: str) -> str:
    """One text for expressions that differ in typing or order alone; a decimal has its value."""
    text = bare(ungrouped(normalised(text)))
    text = in_braces(text) or text  # a list for a set
    text = re.sub(r"\\(?:cdot|times)(?![A-Za-z])", "*", text).replace("\\div", "/")
    text = squeezed(_FRACTION.sub(r"\1/\2", text))
    text = _SINGLE_ARGUMENT.sub(r"\1\2", _IN_BOTH.sub(r"{\1}", _TIMES_NUMBER.sub(r"*\1", text)))
    text = _ordered(text) if not _NO_EXPRESSION.search(text) else text
    if re.fullmatch(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", text):
        return f"decimal {Fraction(text)}"  # which 1/2 is not for 0.5
    return text


def _ordered(text: str) -> str:
    """A sum with terms and factors in one order, without terms 0 and factors 1."""
    terms, start, depth = [], 0, 0
    for place, character in enumerate(text):
        if depth == 0 and character in "+-" and place > start and text[place - 1] not in "*/^_+-":
            terms.append(text[start:place])
            start = place
        depth += (character in "([{") - (character in ")]}")
    terms = [_one_order(term.removeprefix("+")) for term in (*terms, text[start:])]
    kept = sorted(term for term in terms if term not in ("0", "-0"))
    return "+".join(kept) or text


def _one_order(term: str) -> str:
    sign, product = ("-", term[1:]) if term.startswith("-") else ("", term)
    brackets = re.findall(r"\([^()]*\)", product)
    alone = "".join(brackets) == product.replace(")*(", ")(")
    factors = brackets if alone else cut_at(product, "*")
    kept = sorted(factor for factor in factors if factor != "1") or factors
    return sign + "*".join(kept)
