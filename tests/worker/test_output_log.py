"""The log keeps the head and the tail of any amount of output, and says how much it does not keep."""

from __future__ import annotations

import pytest

from worker.observing.output_log import OutputLog, Tee


def test_little_output_is_kept_whole() -> None:
    """Byte for byte, and its end can be looked at while it grows."""
    log = OutputLog(10, 100)
    for part in (b"one ", b"two ", b"three four"):
        log.feed(part)
    assert log.content() == b"one two three four"
    assert log.tail_text(9) == "hree four"
    assert log.since(8, 100) == "three four"


@pytest.mark.parametrize("size", [1, 7, 1000, 5000])
def test_much_output_loses_its_middle_and_says_so(size: int) -> None:
    """Whatever the size of the pieces."""
    log = OutputLog(100, 200)
    data = bytes(range(256)) * 40
    for start in range(0, len(data), size):
        log.feed(data[start : start + size])
    cut = len(data) - 300
    assert log.content() == data[:100] + f"\n[replaybench] {cut} bytes cut here\n".encode() + data[-200:]
    assert log.total == len(data)


def test_a_tail_begins_at_a_character() -> None:
    """A character cut in two is left out."""
    log = OutputLog(0, 100)
    log.feed("äöü".encode())
    assert log.tail_text(3) == "ü"


def test_a_tee_hands_on() -> None:
    """A build shows in the attempt's log and in one of its own."""
    one, two = OutputLog(10, 10), OutputLog(10, 10)
    Tee(one, two).feed(b"x")
    assert (one.content(), two.content()) == (b"x", b"x")
