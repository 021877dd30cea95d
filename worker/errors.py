"""Why an attempt cannot go on, as exceptions. Each one's text is for a person: key, value, next step."""

from __future__ import annotations

import errno
import os

from worker.messages import Cause

_NO_SPACE = os.strerror(errno.ENOSPC)


class AttemptError(Exception):
    """Ends an attempt for a reason that is no test's fault."""

    cause = Cause.INFRASTRUCTURE


class EnvironmentFault(AttemptError):
    """The runtime or the overlay could not be built, or is not what was asked for."""

    cause = Cause.ENVIRONMENT


class InfrastructureFault(AttemptError):
    """The worker, its disk, the checkout or the GPU failed."""


class Stopped(AttemptError):
    """Something asked this attempt to end: the service, a lost lease or the worker's own shutdown."""


def build_fault(what: str, output: str) -> AttemptError:
    """Why an installation failed, with the last of what it printed. A full disk is the worker's fault, not the
    runtime's."""
    text = what + output.strip()[-3000:]
    return InfrastructureFault(text) if _NO_SPACE in output else EnvironmentFault(text)


def is_full_disk(error: Exception) -> bool:
    """Whether something failed for want of room on the worker's disk."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    return isinstance(error, InfrastructureFault) and _NO_SPACE in str(error)
