"""Uploads what an attempt leaves behind: its log, and the log of a runtime that it built."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import structlog

from worker.client import Client, Retryable, ServiceError
from worker.messages import Assignment
from worker.observing.output_log import OutputLog

log = structlog.get_logger()

_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)


def upload(
    client: Client, assignment: Assignment, logs: Mapping[str, OutputLog], given_up: Callable[[int], bool]
) -> list[str]:
    """Upload each log. While the service is away this waits for it, unless ``given_up`` says otherwise after so many
    failures: the events wait for the same service. What could not be stored, and why."""
    lost = [_upload(client, assignment, name, content.content(), given_up) for name, content in logs.items()]
    return [reason for reason in lost if reason]


def _upload(client: Client, assignment: Assignment, name: str, content: bytes, given_up: Callable[[int], bool]) -> str:
    failures = 0
    while True:
        try:
            client.put_artifact(assignment.attempt, name, assignment.token, content)
        except Retryable as error:
            failures += 1
            if given_up(failures):
                log.warning("artifact given up", name=name, error=str(error))
                return f"{name} was not stored: {error}"
            time.sleep(min(error.after_s or _BACKOFF_S[-1], _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1]))
        except ServiceError as error:
            log.warning("artifact refused", name=name, error=str(error))
            return f"{name} was not stored: {error}"
        else:
            return ""
