"""Reads `Range` (RFC 9110, 14.2). Pure: no database, no framework."""

from __future__ import annotations

import enum
import re

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Asked(enum.Enum):
    """What a `Range` asks for."""

    PART = "part"
    WHOLE = "whole"  # it is of no form that we serve, which a server ignores
    NOTHING = "nothing"  # it begins behind the end


def read(header: str, size: int) -> Asked:
    """What a header asks for of so many bytes. Several parts at once are not served: the whole holds them all."""
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        return Asked.WHOLE
    start, end = match[1], match[2]
    if not start:
        return Asked.PART if int(end) and size else Asked.NOTHING
    if end and int(end) < int(start):
        return Asked.WHOLE
    return Asked.PART if int(start) < size else Asked.NOTHING
