"""Why an attempt cannot go on, as exceptions. Each one's text is for a person: key, value, next step."""

from __future__ import annotations

import errno
import os

from worker.messages import Cause


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
    return InfrastructureFault(text) if os.strerror(errno.ENOSPC) in output else EnvironmentFault(text)
