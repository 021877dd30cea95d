"""The plugin's lines are known, whatever else lands in their file. The writing side is the plugin's own code."""

from __future__ import annotations

import os

from worker.observing.seal import KEY_BYTES, Opener, seal

KEY = os.urandom(KEY_BYTES)


def opened(*lines: bytes) -> tuple[list[bytes], str]:
    opener = Opener(KEY)
    return [data for line in lines if (data := opener.open(line))], opener.complaint


def test_sealed_lines_come_through_in_order() -> None:
    """Empty lines between them are nobody's."""
    assert opened(seal(KEY, 1, b"{}"), b"", seal(KEY, 2, b"[1]")) == ([b"{}", b"[1]"], "")


def test_what_the_plugin_did_not_write_is_passed_over_and_told() -> None:
    """Plain JSON, noise, another key, a changed text, a number that is none."""
    good = seal(KEY, 1, b'{"outcome": "failed"}')
    forged = [
        b'{"e": "finished"}',
        b"\xff\xfe",
        b"a b c",
        seal(os.urandom(KEY_BYTES), 1, b"{}"),
        good.replace(b"failed", b"passed"),
        b"0" * 32 + b" 1 {}",
        b"0" * 32 + b" " + b"9" * 5000 + b" {}",
    ]
    data, complaint = opened(*forged, good)
    assert data == [b'{"outcome": "failed"}']
    assert complaint.startswith("7 lines were written to the events' file by something else")


def test_a_line_counts_once_and_a_lost_one_is_told() -> None:
    """A copy of a line, a file read from its start again, a gap."""
    lines = [seal(KEY, number, b"%d" % number) for number in range(1, 6)]
    data, complaint = opened(lines[0], lines[1], lines[0], lines[1], lines[4], lines[3])
    assert data == [b"1", b"2", b"5"]
    assert complaint == "2 events were lost"
