"""Celery's side of a worker: one task that says that there is work, and the consumer that hears it.

A message carries nothing else, so a lost, doubled or late one is harmless. It counts as done when its attempts have
ended, which keeps the consumer from taking a second message while the worker is busy. The broker is told nothing of
that: a message that could not be acknowledged, since the broker was away just then, would count as under way for ever,
and the consumer would take no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from celery import Celery
from kombu.transport import virtual

from worker.messages import WAKE_TASK


def make_app(broker_url: str, kinds: tuple[str, ...], serve: Callable[[], int]) -> Celery:
    """The Celery application of this worker: JSON only, no results, one task."""
    app = Celery("replaybench-worker", broker=broker_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_queues={kind: {"exchange": kind, "routing_key": kind} for kind in kinds},
        task_default_queue=kinds[0],
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        worker_enable_remote_control=False,  # who reaches the broker could shut workers down by it
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_transport_options={"ack_emulation": False, "socket_keepalive": True, "health_check_interval": 20},
    )

    @app.task(name=WAKE_TASK)  # type: ignore[untyped-decorator]
    def wake(kind: str) -> None:  # noqa: ARG001 - which queue it came by is all that a kind says
        serve()

    return app


def consume(app: Celery, slots: int, on_ready: Callable[[], None]) -> int:
    """Consume until told to stop. The exit code.

    The bare controller is used: Celery's own worker program would print a banner and take signals and logging over.
    """
    # Else a wake-up that is being served when the connection breaks is sent back through that connection, and as that
    # fails, written to a file below /tmp.
    virtual.Channel.do_restore = False
    ready = threading.Event()

    def say_once(_consumer: Any) -> None:
        """Celery calls this with every new connection."""
        if not ready.is_set():
            ready.set()
            on_ready()

    controller = app.WorkController(
        pool="threads",
        concurrency=slots,
        ready_callback=say_once,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    controller.start()
    return int(controller.exitcode or 0)


def stop_consuming() -> None:
    """Have the consumer end when its tasks have."""
    from celery.worker import state  # noqa: PLC0415 - the module holds process-wide flags, read only by a consumer

    state.should_stop = 0
