"""Patterns over names of branches, tags and files. Pure.

A tree's patterns are anybody's who opens a pull request. So a name is read once, whatever the pattern: a regular
expression with several stars would try a long name in more ways than there is time for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?|.", re.DOTALL)


@dataclass(frozen=True)
class Pattern:
    """An automaton; bit ``i`` of a number stands for state ``i``.

    In a state of ``takes[c]`` the character ``c`` leads to the next one, in one of ``one`` every character but ``/``
    does. In ``stays`` every character leads back to the state, in ``stays_in_part`` every one but ``/``. From ``skip``
    the next state is reached without a character, from ``leap`` the one behind it.
    """

    takes: Mapping[str, int]
    one: int
    stays: int
    stays_in_part: int
    skip: int
    leap: int
    end: int

    def fits(self, name: str) -> bool:
        """Whether the pattern describes the whole name."""
        states = self._reached(1)
        for character in name:
            takes, stays = self.takes.get(character, 0), self.stays
            if character != "/":
                takes, stays = takes | self.one, stays | self.stays_in_part
            states = self._reached((states & takes) << 1 | states & stays)
            if not states:
                return False
        return bool(states & self.end)

    def _reached(self, states: int) -> int:
        while True:
            more = states | (states & self.skip) << 1 | (states & self.leap) << 2
            if more == states:
                return states
            states = more


@lru_cache(maxsize=1000)
def read(pattern: str) -> Pattern:
    """``*`` and ``?`` stay within one part of a path; ``**`` crosses parts, and ``**/`` may be no part at all."""
    takes: defaultdict[str, int] = defaultdict(int)
    found = dict.fromkeys(("one", "stays", "stays_in_part", "skip", "leap"), 0)
    state = 1
    for token in _TOKENS.findall(pattern):
        match token:
            case "?":
                found["one"] |= state
            case "*":
                found["stays_in_part"] |= state
                found["skip"] |= state
            case "**":
                found["stays"] |= state
                found["skip"] |= state
            case "**/":  # either nothing, or anything that a slash ends
                found["skip"] |= state
                found["leap"] |= state
                state <<= 1
                found["stays"] |= state
                takes["/"] |= state
            case _:
                takes[token] |= state
        state <<= 1
    return Pattern(dict(takes), end=state, **found)
