"""Where a page of compared cases ended. Pure: no database, no framework."""

from __future__ import annotations

import re
from dataclasses import dataclass

PATTERN = r"^[A-Za-z0-9._-]{1,200}/[A-Za-z0-9._-]{1,100}/[01]/[0-9]{1,18}$"


@dataclass(frozen=True)
class Cursor:
    """The last case of a page: runtime, suite, which side it stands on, and its number."""

    runtime: str
    suite: str
    side: int
    case: int

    @property
    def position(self) -> tuple[str, str, int, int]:
        """What cases are ordered by."""
        return (self.runtime, self.suite, self.side, self.case)

    @property
    def query(self) -> str:
        """What to add to the address for the next page."""
        return f"after={self.runtime}/{self.suite}/{self.side}/{self.case}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor of a query's value.

        Raises:
            ValueError: it is none.
        """
        if not re.fullmatch(PATTERN, text):
            raise ValueError(f"{text!r} is no place in a list of compared cases; take `next` of the page before")
        runtime, suite, side, case = text.split("/")
        return cls(runtime, suite, int(side), int(case))
