"""How texts are said in short."""

from __future__ import annotations

import pytest

from service.words import brief


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("short", "short"),
        ("\n  first   line \nsecond", "first line"),
        ("exactly twenty chars", "exactly twenty chars"),
        ("no version of torch==9.9 is there", "no version of…"),
        ("no version of torchs is there", "no version of…"),
        ("no version of torch is there", "no version of torch…"),
        ("a" * 30, "a" * 19 + "…"),
    ],
)
def test_the_first_line_is_cut_between_words(text: str, shown: str) -> None:
    """And only a word that is longer than half of the room is cut itself."""
    assert brief(text, 20) == shown
