"""How the service logs: one JSON object a line on standard error, a fixed phrase as ``event`` plus fields."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from typing import TextIO, cast

import structlog


class Unfailing(io.TextIOBase):
    """A stream of text. A line that cannot be written, to a full disk or to a reader who is gone, is left out.

    A thread of the service would otherwise end while it tells of some small trouble, and a call whose change is stored
    would be answered as if it were not.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes, if that can be done."""
        if self._stream is not None:  # Python's own, where the process was started without one
            with contextlib.suppress(OSError):
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hands on what was written, if that can be done."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.flush()


def configure(level: str) -> None:
    """Sets up the log of this process. ``level`` is ``debug``, ``info``, ``warning`` or ``error``."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", Unfailing(sys.stderr))),
    )
