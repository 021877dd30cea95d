"""A tree's failure rules, kept from holding up its worker.

A rule is anybody's who opens a pull request, and its regular expression may try one text in more ways than there is
time for, deaf to signals and with every thread of the process waiting. So another process searches, within limits.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from worker.messages import FailureClass, FailureRule

LIMIT_S = 1.0
"""Processor time for one text."""
BUDGET_S = 20.0
"""Processor time for all texts of an attempt."""
_WAIT_S = 10.0
"""For an answer, by the clock: a machine that is busy gives less processor time than time passes."""
_MOST_TEXT = 64 << 10
_SEARCH = Path(__file__).with_name("rule_search.py")


class Rules:
    """The rules of one attempt. A process is started at the first text that needs one, and ends with the attempt.

    Args:
        note: takes a line for the attempt's log, where a rule is no longer tried.
    """

    def __init__(
        self,
        rules: Sequence[FailureRule],
        note: Callable[[str], None],
        *,
        limit_s: float = LIMIT_S,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._rules = rules
        self._note = note
        self._limit_s = limit_s
        self._budget_s = self._left_s = budget_s
        self._tried = list(range(len(rules)))
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def match(self, text: str) -> FailureClass | None:
        """The class of the first rule that finds something in a text. A rule that takes too long is tried no more."""
        said = json.dumps(text[:_MOST_TEXT])
        while self._tried:
            fresh = self._process is None
            try:
                answer = self._asked(f"[{json.dumps(self._tried)}, {said}]\n".encode("ascii"))
            except OSError as error:
                self._end()
                if fresh:
                    self._tried.clear()
                    self._note(f"failure_rules class nothing more in this attempt: nothing can search: {error}")
                continue  # Else something else has ended it since the last text.
            if not answer.endswith(b"\n"):
                self._give_up(self._tried[answer.count(b".") - 1])
                continue
            found, microseconds = map(int, answer.lstrip(b".").split())
            self._spend(microseconds / 1e6)
            return self._rules[found].failure_class if found >= 0 else None
        return None

    def _asked(self, request: bytes) -> bytes:
        """What comes back: all of it, or what came before the process ended or its time ran out.

        Raises:
            OSError: nothing came back at all.
        """
        if self._process is None:
            self._start()
        deadline = time.monotonic() + _WAIT_S
        self._channel.sendall(request)
        answer = b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self._channel], [], [], max(0.0, deadline - time.monotonic()))
            part = self._channel.recv(4096) if ready else b""
            if not part and not answer:
                raise OSError("the process that searches gave no answer")
            if not part:
                break
            answer += part
        return answer

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(_WAIT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SEARCH), str(self._limit_s)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        self._channel.sendall(json.dumps([rule.match for rule in self._rules]).encode("ascii") + b"\n")

    def _give_up(self, index: int) -> None:
        self._end()
        self._tried.remove(index)
        rule = self._rules[index]
        self._note(
            f"failure_rules[{index}] classes nothing more in this attempt: match = {rule.match[:200]!r} was under way "
            f"when the search of one text had taken {self._limit_s:g} s; write it so that it tries a text in fewer ways"
        )
        self._spend(self._limit_s)

    def _spend(self, seconds: float) -> None:
        self._left_s -= seconds
        if self._left_s <= 0 and self._tried:
            self._tried.clear()
            self._note(
                f"failure_rules class nothing more in this attempt: they took {self._budget_s:g} s in all; write "
                "fewer, or such as try a text in fewer ways"
            )

    def _end(self) -> None:
        if self._process:
            self._channel.close()
            self._process.kill()
            self._process.wait()
            self._process = None
