"""Searches texts for a tree's failure rules, alone in a process: `re` can neither be interrupted nor bounded.

Standard input and output carry it. The first line is a JSON list of patterns; each later one is a JSON pair of the
indices of the rules that are to be tried and the text. For each rule that is tried a ``.`` comes back, and at the end a
line of the index that matched (or -1) and the processor time in microseconds. More than ``argv[1]`` seconds of
processor time for one text end the process, by the kernel's own timer.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time

_MEMORY = 1 << 30


def main() -> None:
    limit_s = float(sys.argv[1])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    patterns = json.loads(sys.stdin.buffer.readline())
    for line in sys.stdin.buffer:
        tried, text = json.loads(line)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        found = next((index for index in tried if _matches(patterns[index], text)), -1)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, b"%d %d\n" % (found, 1e6 * (time.process_time() - began)))


def _matches(pattern: str, text: str) -> bool:
    """The service refuses what is no regular expression; one that this Python reads otherwise classes nothing."""
    os.write(1, b".")
    try:
        return re.search(pattern, text) is not None
    except (re.error, OverflowError, RecursionError, MemoryError):
        return False


if __name__ == "__main__":
    main()
