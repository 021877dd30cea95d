"""Sends wake-ups to workers through Celery. What is lost here is sent again by the sweep."""

from __future__ import annotations

from collections.abc import Iterable

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from worker.messages import WAKE_TASK

log = structlog.get_logger()


class Broker:
    """The sending end of the broker. One for each service process; safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self._app = Celery("replaybench", broker=url, set_as_current=False)
        self._app.conf.update(
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
            broker_connection_timeout=2,
            # A broker that is away is not asked twice: each request and each sweep would wait two seconds more.
            broker_transport_options={"socket_connect_timeout": 2, "socket_timeout": 5, "max_retries": 0},
        )

    def send(self, kinds: Iterable[str]) -> None:
        """Wakes one worker for each entry. A broker that is away is logged and left to the sweep."""
        kinds = list(kinds)
        try:
            for kind in kinds:
                self._app.send_task(WAKE_TASK, args=[kind], queue=kind, retry=False)
        except OperationalError as error:
            log.warning("wake-failed", kinds=kinds, error=str(error))

    def waiting(self, kind: str) -> int:
        """How many wake-ups lie in a kind's queue.

        Raises:
            OperationalError: the broker is away.
        """
        with self._app.connection_for_write() as connection:
            try:
                return int(connection.default_channel._size(kind))
            except connection.recoverable_connection_errors as error:  # it went away between two words
                raise OperationalError(str(error)) from error

    def close(self) -> None:
        """Gives the connections back."""
        self._app.close()
