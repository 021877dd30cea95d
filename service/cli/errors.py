"""What a person at the command line did not expect."""

from __future__ import annotations


class UserError(Exception):
    """A command cannot do what it was asked. The text says why, and what to do."""
