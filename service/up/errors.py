"""What keeps the embedded system from running."""

from __future__ import annotations


class UpError(Exception):
    """It cannot start as asked; the text says what to change."""


class HopelessError(Exception):
    """A child keeps dying."""
