"""What is wrong with an option or argument, as the command line says it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MOST_SHOWN = 200
"""Letters of a value: a patch or a list may be long."""
SECRET = frozenset({"credential", "secret"})
"""Fields whose values are not shown."""

NAMES = {
    "approved_by": "your user name",
    "base": "BASE",
    "cases": "--case",
    "cells": "--cell",
    "events": "--event",
    "head": "HEAD",
    "keyword": "-k",
    "name": "NAME",
    "node_id": "NODE_ID",
    "overlap_s": "--overlap",
    "path.attempt": "--attempt",
    "ref": "--tree",
    "requested_by": "your user name",
    "runtimes": "--runtime",
    "scopes": "--scope",
    "suites": "--suite",
    "trees": "--tree",
    "url": "GIT-URL",
    "webhook": "WEBHOOK",
    "worker": "NAME",
}
"""The options and arguments that are called otherwise than the API's field; where they differ between commands, those
commands say how they call them. A number in an address is an argument, like JOB, unless it is here as ``path.…``.
"""

PATTERNS = {
    r"^[a-z0-9][a-z0-9._-]{0,99}$": "small letters, digits, dots, dashes and underscores, a letter or digit first, "
    "and 100 of them at most",
    r"^[A-Za-z]+-[0-9A-Za-z]+$": "letters, a dash, then digits or letters, like WP-207",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$": "letters, digits, dots, dashes and underscores, a letter or digit first, "
    "and 64 of them at most",
    r"^[^\x00-\x1f\x7f]{1,100}$": "1 to 100 characters in one line",
    r"^[^\x00-\x1f\x7f]{1,80}$": "1 to 80 characters in one line",
    r"^[\w.-]+(/[\w.-]+)+$": "OWNER/NAME, of letters, digits, dots, dashes and underscores",
    r"^[!-9;-~]{1,200}$": "1 to 200 ASCII characters without spaces and colons",
    r"^[\x20-\x7e\t\r\n]*$": "lines of ASCII text, as `ssh-keyscan HOST` prints them",
}
"""What a pattern of the API's inputs allows."""

REASONS = [
    (r"Value error, (.*)", r"\1"),
    (r"Input should be greater than or equal to (\S+)", r"give \1 or more"),
    (r"Input should be less than or equal to (\S+)", r"give \1 or less"),
    (r"Input should be a valid (integer|number)\b.*", r"give a whole number"),
    (r"Unable to parse input string as an integer, exceeded maximum size", r"give a smaller number"),
    (r"Input should be ('.*)", r"give \1"),
    (r"Input should be a valid string\b.*", r"give text that is UTF-8"),
    (r"\w+ should have at least 1 (character|item)s?\b.*", r"give one that is not empty"),
    (r"String should have at most (\d+) characters?", r"give \1 characters or less"),
    (r"Data should have at most (\d+) bytes?", r"give \1 bytes or less"),
    (r"\w+ should have at most (\d+) items? after validation, not (?:more than )?(\d+)", r"give \1 or less, not \2"),
]
"""pydantic's sentences, and what is said for each."""
_PATTERN = re.compile(r"String should match pattern '(.*)'")
_PLACES = frozenset({"body", "path", "query"})


def complaints(problems: Iterable[Mapping[str, Any]], names: Mapping[str, str] | None = None) -> str:
    """What is wrong, of pydantic's problems with a request's fields; ``names`` is how a command calls some of them."""
    return "; ".join(dict.fromkeys(_complaint(one["loc"], _value(one["input"]), one["msg"], names) for one in problems))


def refusals(problems: Iterable[Mapping[str, str]], names: Mapping[str, str] | None = None) -> str:
    """The same of a service's answer, which has its own list of what is wrong: ``key``, ``message`` and ``value``."""
    parts = ((one["key"].split("."), one.get("value", ""), one["message"]) for one in problems)
    return "; ".join(dict.fromkeys(_complaint(loc, value, message, names) for loc, value, message in parts))


def reason(message: str) -> str:
    """What is allowed, in plain words."""
    pattern = _PATTERN.fullmatch(message)
    if pattern:
        allowed = PATTERNS.get(pattern[1])
        return f"give {allowed}" if allowed else message
    for theirs, ours in REASONS:
        found = re.fullmatch(theirs, message, re.DOTALL)
        if found:
            return found.expand(ours)
    return message


def name_of(place: Iterable[object], names: Mapping[str, str] | None = None) -> str:
    """The option or argument that a field's value came from."""
    words = [word for word in map(str, place) if not word.isdecimal()]
    start = words.pop(0) if words and words[0] in _PLACES else ""
    if not words:
        return "the arguments"
    known = {**NAMES, **(names or {})}
    field = words[-1]
    usual = field.upper() if start == "path" else f"--{field.replace('_', '-')}"
    return known.get(f"{start}.{field}") or known.get(field) or usual


def shown(value: object) -> str:
    """A value that was typed, as a person knows it: no enum, model or list of Python's."""
    from pydantic_core import to_json

    text = repr(str(value)) if isinstance(value, str) else to_json(value, fallback=str, bytes_mode="base64").decode()
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def _value(value: object) -> str:
    """What to show of a value: nothing of a list or a model, of which one option gave but a part."""
    return shown(value) if value is None or isinstance(value, (str, int, float)) else ""


def _complaint(place: Iterable[object], value: str, message: str, names: Mapping[str, str] | None) -> str:
    place = list(place)
    hidden = not SECRET.isdisjoint(map(str, place))
    return f"{name_of(place, names)}{'' if hidden or not value else f' {value}'}: {reason(message)}"
