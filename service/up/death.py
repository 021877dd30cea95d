"""A child that cannot outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def bound_to_parent() -> Callable[[], None]:
    """What a child runs before its program, so that the kernel kills it when the calling process dies in any way.

    The call binds to the calling *thread*: start children from the main thread. Linux only.
    """
    parent = os.getpid()
    prctl = _LIBC.prctl  # looked up before the fork: between fork and exec a child must not load anything

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above; nobody will send the signal any more
            os._exit(1)

    return bind
