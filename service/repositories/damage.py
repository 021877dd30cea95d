"""What a failure of git says of the mirror that it read: an answer, a fault that passes, or damage. Pure."""

from __future__ import annotations

import re

from service.repositories.git import GitFailed

PASSES = re.compile(
    r"No space left|Disk quota exceeded|Too many open files|Permission denied|Read-only file system|"
    r"Resource temporarily unavailable|[Oo]ut of memory|Cannot allocate memory|unable to create thread",
)
"""What the machine lacks at the moment. Fetching the mirror anew would lack it too."""

TOLD = re.compile(
    r"^(fatal|error): (inflate: data stream |packfile |packed object |loose object |object file |garbage |bad object |"
    r"bad config |unable to (read|unpack|open object|find) |failed to read |failed to unpack |cannot read |"
    r"could not read |not a git repository|not a tree object|Could not open |.* (is corrupt|does not match index))",
    re.MULTILINE,
)
"""How git begins when objects that it has cannot be read. At the beginning of a line stands no path of a tree."""


def ended(error: GitFailed) -> bool:
    """Whether git came to an end by itself, so that its words are about what it was asked."""
    return error.status is not None and error.status > 0


def of_reading(error: GitFailed) -> bool:
    """Whether what is known to be there cannot be read: whatever git says then, save what passes by itself."""
    return ended(error) and PASSES.search(error.reason) is None


def of_words(error: GitFailed) -> bool:
    """The same of a command that may fail for another's fault: a probe's, or the repository's that is fetched."""
    return of_reading(error) and TOLD.search(error.reason) is not None
