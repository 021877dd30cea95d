"""Ports of the loopback interface."""

from __future__ import annotations

import errno
import socket

from service.up.errors import UpError


def free() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def choose(wanted: int) -> int:
    """The wanted port, or a free one for 0.

    Raises:
        UpError: somebody listens there, or it may not be used.
    """
    if wanted == 0:
        return free()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free to a server
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            taken = "something listens there already" if error.errno == errno.EADDRINUSE else str(error.strerror)
            raise UpError(
                f"port {wanted} cannot be used ({taken}); give another --port, or 0 for a free one"
            ) from error
    return wanted
