"""Checks an expression as pytest's ``-k`` takes it. Pure.

A mistyped one would be found only by pytest, behind a checkout and the build of a runtime. And one with a parenthesis
too many would end the one in which a suite's own expression and a job's are put: ``(suite) and (a) or (b)`` runs what
the suite leaves out.
"""

from __future__ import annotations

import re

# https://docs.pytest.org/en/stable/reference/reference.html#command-line-flags, option -k; the characters of a name are
# those that pytest's own scanner takes.
_TOKENS = re.compile(r"[ \t]+|(?P<word>[()]|(?:\w|[:+\-.\[\]\\/])+)|(?P<other>.)", re.DOTALL)
DEEPEST = 50
"""Parentheses within each other, and ``not`` behind ``not``: pytest reads them by calls within each other."""


def fault(expression: str) -> str:
    """What is wrong with an expression; empty where pytest takes it.

    A name is what may stand in a case's id between spaces and parentheses; ``and``, ``or`` and ``not`` join names.
    """
    wants_name, opened, depth = True, 0, 0
    for match in _TOKENS.finditer(expression):
        word, at = match["word"], f"at character {match.start() + 1}"
        if match["other"]:
            return f"{match['other']!r} {at} is no character of a name"
        if word is None:
            continue
        if wants_name == (word in {")", "and", "or"}):
            return f"a name, 'not' or '(' should stand {at}, not {word!r}" if wants_name else _behind(word, at)
        opened += (word == "(") - (word == ")")
        depth = depth + 1 if word in {"(", "not"} else opened
        if opened < 0:
            return f"the ')' {at} closes nothing"
        if depth > DEEPEST:
            return f"more than {DEEPEST} '(' and 'not' stand within each other {at}"
        wants_name = word in {"(", "not", "and", "or"}
    if wants_name:
        return "it ends where a name should stand"
    return "a '(' is not closed" if opened else ""


def _behind(word: str, at: str) -> str:
    return f"'and', 'or' or the end should stand {at}, not {word!r}"
