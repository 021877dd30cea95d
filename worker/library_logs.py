"""Brings the warnings of the libraries into the worker's log: a broker that is away, a message that was refused.

Celery and kombu log to handlers that nobody set up, and so to nowhere.
"""

from __future__ import annotations

import logging

import structlog

_LIBRARIES = ("celery", "kombu")
_MOST = 2000

log = structlog.get_logger()


class _Bridge(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        report = log.error if record.levelno >= logging.ERROR else log.warning
        report("library", logger=record.name, said=record.getMessage()[:_MOST])


def bridge() -> None:
    """Hand on what the libraries warn of."""
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.addHandler(_Bridge(logging.WARNING))
        logger.setLevel(logging.WARNING)
        logger.propagate = False
