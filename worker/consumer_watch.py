"""Sees whether the consumer still consumes. A process that lives proves nothing: after a broken connection a consumer
can wait for ever on a socket from which nothing comes (celery#8030, celery#10205).

The proof is progress. A wake-up that lies in a queue of this worker, while the worker has a free slot and takes none,
for longer than the limit, says that the consumer is dead. Then the worker ends itself, to be started again, once no
attempt runs. Until then, and while the broker cannot be asked, it claims by itself: what waits is in the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from worker.serve import Server

log = structlog.get_logger()

_MOST_LOOK_S = 10.0
_LEAST_LOOK_S = 0.1
_ANSWER_S = 5.0


class ConsumerWatch:
    """Looks at the queues from time to time, over a connection of its own."""

    def __init__(
        self,
        app: Celery,
        kinds: tuple[str, ...],
        server: Server,
        stopping: threading.Event,
        *,
        limit_s: float,
        on_dead: Callable[[], None],
    ) -> None:
        self._app, self._kinds, self._server, self._stopping = app, kinds, server, stopping
        self._limit_s = limit_s
        self._on_dead = on_dead
        self._progress = (0, 0)
        self._since = time.monotonic()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="consumer-watch", daemon=True).start()

    def _run(self) -> None:
        while not self._stopping.wait(min(_MOST_LOOK_S, max(_LEAST_LOOK_S, self._limit_s / 6))):
            try:
                waiting = self._waiting()
            except (OperationalError, OSError) as error:
                log.debug("broker away", error=str(error))
                self._since = time.monotonic()
                self._claim()
                continue
            if self._dead(waiting):
                if not self._server.busy:
                    self._on_dead()
                    return
                self._claim()

    def _dead(self, waiting: bool) -> bool:
        """Whether a wake-up has lain there for too long, with a slot free and nothing done all the while."""
        progress = (self._server.asked, self._server.busy)
        if not waiting or not self._server.free or progress != self._progress:
            self._progress, self._since = progress, time.monotonic()
        return time.monotonic() - self._since > self._limit_s

    def _claim(self) -> None:
        """Claim without having been woken; a thread of its own, since an attempt takes hours."""
        threading.Thread(target=self._server.serve, name="claim-unasked", daemon=True).start()

    def _waiting(self) -> bool:
        """Whether a wake-up lies in a queue of this worker.

        Raises:
            OperationalError, OSError: the broker is away.
        """
        patience = {"socket_connect_timeout": _ANSWER_S, "socket_timeout": _ANSWER_S, "max_retries": 0}
        with self._app.connection_for_read(transport_options=patience) as connection:
            try:
                channel = connection.default_channel
                return any(channel._size(kind) for kind in self._kinds)
            except connection.recoverable_connection_errors as error:  # it went away between two words
                raise OperationalError(str(error)) from error
