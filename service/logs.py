"""How the service logs: one JSON object a line on standard error, a fixed phrase as ``event`` plus fields."""

from __future__ import annotations

import logging
import sys

import structlog


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
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
