"""Parts of a completion that verifiers read."""

import re

_BRACES = re.compile(r"\\[{}]|[{}]")


def after_thinking(text: str) -> str:
    """Returns the text after the last `</think>`; an empty text if a `<think>` is left open."""
    text = text[text.rfind("</think>") + len("</think>") :] if "</think>" in text else text
    return "" if "<think>" in text else text


def in_braces(text: str, start: int, most: int) -> str | None:
    """Returns the content of a brace.

    Args:
        text: the text.
        start: the place behind the opening brace.
        most: characters within which the closing brace is searched.

    Returns:
        The content; None if the brace is not closed in reach.
    """
    depth = 1
    for brace in _BRACES.finditer(text, start, start + most):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : brace.start()]
    return None
