"""Tokens as texts: random, known by their SHA-256 and a visible prefix. Pure: no database, no framework."""

from __future__ import annotations

import hashlib
import hmac
import secrets

MARK = "rb_"
PREFIX = len(MARK) + 8
"""Characters that are shown: 48 random bits tell tokens apart, and leave 208 that nobody can guess."""


def make() -> str:
    """A new token of 256 random bits."""
    return MARK + secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """What is stored of a token. A plain SHA-256 will do: 256 random bits cannot be tried out as a password can."""
    return hashlib.sha256(token.encode()).hexdigest()


def prefix(token: str) -> str:
    """The part of a token that lists and the audit may show."""
    return token[:PREFIX]


def same(one: str, other: str) -> bool:
    """Whether two tokens are one, compared in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())
