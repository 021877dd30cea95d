"""Why an attempt cannot go on, as exceptions. Each one's text is for a person: key, value, next step."""

from __future__ import annotations

import errno
import itertools
import os
import re

from worker.messages import Cause

_FAULT = re.compile(r"\s*(?:\u00d7|error:)\s")
_FRAME = re.compile(r"^\s*(?:[\u00d7│├╰─▶]+\s)*\s*(?:error:\s)?")
_LONGEST_REASON = 1000
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
    """Why an installation failed: its reason in the first line, where one can be told, and below it the last of what it
    printed. A full disk is the worker's fault, not the runtime's."""
    why, said = _reason(output), output.strip()[-3000:]
    text = f"{what}{why}\n{said}" if why else what + said
    return InfrastructureFault(text) if _NO_SPACE in output else EnvironmentFault(text)


def _reason(output: str) -> str:
    """What uv says to be wrong, in one line and without the frame that it draws; nothing where it says nothing. What
    stands before, like the interpreter's path, is no reason."""
    lines = output.splitlines()
    start = next((number for number, line in enumerate(lines) if _FAULT.match(line)), len(lines))
    block = itertools.takewhile(str.strip, lines[start:])
    return " ".join(filter(None, (_FRAME.sub("", line).strip() for line in block)))[:_LONGEST_REASON]


def is_full_disk(error: Exception) -> bool:
    """Whether something failed for want of room on the worker's disk."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    return isinstance(error, InfrastructureFault) and _NO_SPACE in str(error)
