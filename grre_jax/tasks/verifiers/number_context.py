r"""The text around a number: decides if the number is part of something larger, a bound, or denied.

A number is a part where a calculation goes on (18 - 3), where it is a bound (at least 18, 18 or
more, < 18) and where words make another number of it (18 plus tax, twice 18, minus 18). It is
denied before it (not 18) or behind it (18 is wrong; 18? No.).

Looked at are a few dozen characters before and behind a number; every pattern is bounded.
"""

import re

from grre_jax.tasks.verifiers.numerals import RAISED, VULGAR

# Characters between two numbers that are said together, or around one that tell what it is.
NEAR = 60

_OPERATION = (
    r"\\(?:times|cdot|div|pm|mp|over(?:line)?|bar|sqrt|pi|[dtc]?frac|log|ln|exp|sin|cos|tan"
    r"|binom|bmod)(?![A-Za-z])"
)
# How a number goes on that is only the beginning: 5 = ..., 5^2 (but not 5^\circ, 5^{th}), 5 - 3, 5
# + x, 5+, 5³, 5:30, 5..7, 1.000.000, 1e4000, 0.\overline{3}, 20% of 90 = ...
GOES_ON = re.compile(
    rf"\s?(?:=|\^(?!\s?\{{?\s?(?:\\circ|\\text|°|st|nd|rd|th))|[-−+]\s?[0-9(\\$√]"
    rf"|[/*×÷·±]\s?[-−]?[0-9(\\$√]|x\s?[0-9$]"
    rf"|\.?{_OPERATION}|[{RAISED}√]|[∶_.][0-9]|\s?(?:\.\.+|…)\s?[0-9]|[eE][-+]?[0-9]"
    rf"|\sof\s[$]?[0-9.,]{{1,30}}\s?=|%\sof\s[$]?[0-9]"
    r"|\+\s?[A-Za-z](?![A-Za-z])|[-−×·]\s?[b-hj-z](?![A-Za-z'’]))"
    # 18 dollars + 2, 18^\circ \times 3
    r"|\s?(?:[A-Za-z°%]{1,15}|\^\{?\\circ\}?)\s?(?:[+×]|\*(?!\*)|\\(?:times|cdot)(?![A-Za-z])"
    r"|x(?=\s))\s?[-−$\\]{0,3}[0-9(]"
    r"|\+(?![+0-9])|\s?and\s(?:an?|one|three)[\s-](?:half|third|quarter|fourth)"
)
GOES_ON_IN_A_BOX = re.compile(
    r"!|[nxyz](?![A-Za-z])|\)?\([0-9]"
)  # elsewhere 5! is glad, and 5x is five times
# What stands before a number that is only an operand. A dash or an x after a word is none, nor are
# Markdown's asterisks.
_OPERATOR = re.compile(
    rf"(?:(?:[+^×÷√±/]|[0-9%]\)? ?(?:[-−–x·]|\*(?!\*))|(?<![\w'’])[b-z] ?[-−]"
    rf"|(?:half|thirds?|quarters?|fourths?|percent|[0-9%]|{VULGAR}) of|\}}\s?\{{"
    rf"|{_OPERATION}(?:_\{{?\w{{1,9}}\}}?|\[\w{{1,9}}\])?)["
    r" ({$]{0,8}|[0-9](?:\*\*|∶|\.)|(?<![A-Za-z])(?:sqrt|log|ln|exp|sin|cos|tan) ?\()$"
)
_INEQUALITY = r"(?:[≤≥⩽⩾≦≧≪≫]|\\(?:leq?|geq?|leqslant|geqslant|lt|gt|ll|gg)(?![A-Za-z]))"
# Not the brackets of <<48/2=24>>24, nor the arrows => and ->.
_BOUND_BEFORE = re.compile(
    rf"(?:(?<![-<>=−])[<>]=?|{_INEQUALITY}|(?<![A-Za-z])(?:at\s(?:the\s(?:very\s)?)?(?:least|most)"
    r"|(?:more|less|fewer|greater|larger|smaller|higher|lower|bigger|longer|shorter)\sthan"
    r"|upwards?\sof"
    r"|exceed(?:s|ing)?|nearly|almost|close\sto|short\sof|twice|thrice|double|triple|half|minus"
    r"|negative|plus|times)(?![A-Za-z])"
    # "Adds up to 18" and "spread over 18 days" are none.
    r"|(?:^|[#:=]|(?<![A-Za-z])(?:is|be|was|are|just|well))(?:\\text|[\s$({*_`\\]){0,8}(?:up\sto"
    r"|over|under|above|below|beyond)(?![A-Za-z]))"
    r"(?:\\text|[\s$({*_`}\\]){0,8}$",
    re.IGNORECASE,
)
_WORDS_FOR_NUMBERS = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six"
    r"|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|a?\s?(?:hundred|thousand|million"
    r"|dozen))(?![A-Za-z])"
)
_GAP = r"(?:\\text|[\s{}$*_~,()\\]){0,8}"
_UNIT = r"(?:(?!(?:or|and|at|plus|times|to|is|was)(?![A-Za-z]))[A-Za-z°%]{1,15}\s){0,2}"
_BOUND_AFTER = re.compile(
    rf"\s?(?:<(?![<|/])|>(?!>)|{_INEQUALITY}|≠|\\neq?(?![A-Za-z]))"
    rf"|{_GAP}{_UNIT}(?:(?:or|and)\s(?:more|less|fewer|greater|higher|lower|larger|smaller|up"
    rf"|over|above|under|below|older|younger|longer)"
    r"|at\s(?:the\s(?:very\s)?)?(?:least|most)|plus|minus)(?![A-Za-z])"
    # But 18 more than Tom.
    r"|\s(?:[A-Za-z]{1,15}\s)?(?:more|less|fewer|greater)\sthan\s[$\\]{0,2}[0-9]"
    r"|\s(?:times|(?:divided|multiplied)\sby)\s[$]?[0-9]|\s(?:squared|cubed|remainder|(?:ten"
    r"|hundred|thousand|million)ths?)(?![A-Za-z])"
    rf"|\s(?:(?:or|to|point)\s(?:maybe\s|perhaps\s|possibly\s)?{_WORDS_FOR_NUMBERS}|point\s[0-9])",
    re.IGNORECASE,
)

_DENIED_BEFORE = re.compile(
    r"(?:(?:(?<!\w)(?:not|never|cannot|neither|nor|no\slonger|rather\sthan|instead\sof|(?:any"
    r"|every)thing\sbut|other\sthan|except"
    r"|excluding|besides)|n['’]t)"
    r"(?:\s(?:be|equal|to|just|the|for|[a-z]{1,12}ly)(?!\w)){0,3}[\s$*_(){}\\]{1,8}|(?:≠|!="
    r"|\\neq?)[\s$(]{0,4})$",
    re.IGNORECASE,
)
_EXPONENT = re.compile(r"[A-Za-z}]\s?\^\s?\{?$")
_ADVERBS = r"(?:(?:[a-z]{2,12}ly|also|just|very|quite)\s){0,2}"
_NOT_RIGHT = (
    r"(?:(?:the|a|my|our|quite|really|actually|be|even)\s){0,3}(?:(?:final|correct|right"
    r"|true)\s)?(?:answers?|correct|right|true|solution)"
)
_BAD = (
    rf"(?:incorrect|wrong|false|untrue|invalid|impossible|mistaken|an?\s(?:mistake|error)"
    rf"|not\s{_NOT_RIGHT})(?![A-Za-z])(?!\s(?:to|that)(?![A-Za-z]))"
)
_TOO = r"too\s(?:high|low|small|large|big|much|many|few|little|long|short)(?![A-Za-z])"
_IS = r"(?:is|was|would\sbe|must\sbe|will\sbe|has\sto\sbe|seems(?:\sto\sbe)?|looks)\s"
_IS_NOT = (
    rf"(?:(?:(?:is|was|could|would|ca)(?:n['’]t|\snot)|cannot|can\snot)\s{_NOT_RIGHT})(?![A-Za-z])"
)
_IT = r"(?:which|that|this|it)"
_SAYS_NO = rf"(?:(?:{_IS}|['’]s\s){_ADVERBS}(?:{_BAD}|{_TOO})|{_IS_NOT})"
_DENIED_AFTER = re.compile(
    # 18 eggs is wrong.
    rf"(?:\\text|[\s*_`$)}}\]{{\"”\\]){{0,8}}(?:(?!(?:is"
    rf"|was)(?![A-Za-z]))[A-Za-z°%]{{1,15}}\s){{0,2}}{_SAYS_NO}"
    # 18, but that is wrong; 18. That's wrong.
    rf"|(?:[*_`$)}}\]\"”\\]|\s){{0,8}}[,;:.!?—–-]?\s*(?:(?:and|but|so|no|wait|oh|actually"
    rf"|however|hmm)[\s,.!]{{1,3}}){{0,3}}{_IT}\s?{_SAYS_NO}"
    rf"|\s?[\[(,;:.!—–-]\s?{_ADVERBS}{_BAD}\s?(?:[)\].,;!]|$)"  # 18 (wrong)
    # 18. Wait, no, 20.
    r"|[*_`$)}\]\"”\\]{0,8}\s?[.,;:!?—–-]?\s*(?:(?:wait|no(?=[,.!:])|nope|oops|sorry|hmm"
    r"|actually|correction)[\s,.:!—–-]{1,3}){1,4}"
    r"(?:(?:it|that|this|the\sanswer)(?:['’]s|\s(?:is|should\sbe|must\sbe))\s)?[$\\]{0,2}[0-9]"
    rf"|\s?\?\s*(?:no|nope|wrong|incorrect)\s?(?:[.,;!]|$)",  # 18? No.
    re.IGNORECASE,
)
_DENIED_FORM = re.compile(
    r"(?:(?<![A-Za-z])(?:wrong|incorrect|false|mistaken|half|twice|double"
    r"|triple)\s(?:of\s)?(?:(?:the|my|our|your|final)\s){0,2}"
    r"|(?:n['’]t|(?<![A-Za-z])(?:not|never|false|untrue|doubt))\s(?:(?:think|believe|say|claim"
    r"|mean|true|correct|certain|sure|agree)\s)?"
    r"(?:that\s)?(?:(?:the|my|our|this|final|correct|right"
    r"|true)\s){0,3})answers?(?!\w)(?:(?!answer)[^.\n]){0,80}$",
    re.IGNORECASE,
)


def is_denied(text: str, number: re.Match) -> bool:
    """Returns True if the text before or after a number denies that it is the answer."""
    before, behind = _around(text, number)
    return _DENIED_BEFORE.search(before) is not None or _DENIED_AFTER.match(behind) is not None


def is_passed_over(text: str, number: re.Match) -> bool:
    """Returns True if a number is denied, or is the exponent of a unit."""
    return _EXPONENT.search(_around(text, number)[0]) is not None or is_denied(text, number)


def is_bound(text: str, number: re.Match) -> bool:
    """Returns True if the text next to a number makes it a bound or another number.

    For instance "at least 18", "18 or more", "twice 18".
    """
    before, behind = _around(text, number)
    return _BOUND_BEFORE.search(before) is not None or _BOUND_AFTER.match(behind) is not None


def is_part(text: str, number: re.Match) -> bool:
    """Returns True if a number is a bound or part of something larger, except after "="."""
    if is_bound(text, number) or _OPERATOR.search(_around(text, number)[0]):
        return True
    after = GOES_ON.match(text, number.end())
    return after is not None and "=" not in after[0]


def is_denied_form(text: str, end: int) -> bool:
    """Returns True if the form that ends here denies an answer, or gives half of one.

    For instance "the wrong answer is", "I don't think the answer is".
    """
    return _DENIED_FORM.search(text[max(0, end - 2 * NEAR) : end]) is not None


def _around(text: str, number: re.Match) -> tuple[str, str]:
    return (
        text[max(0, number.start() - NEAR) : number.start()],
        text[number.end() : number.end() + NEAR],
    )
