"""The first process in a sandbox's PID namespace: starts the command, reaps what is orphaned, and tells how it ended.

Run by the runtime's own interpreter as ``python -I -S sandbox_init.py STATUS -- COMMAND...``: Python 3.9 or newer,
standard library only. STATUS is a descriptor that the command's raw wait status is written to. Then it waits to be
killed, so that the keeper can name what the command left behind. Nothing inside can end or stop it: the kernel passes a
namespace's first process no signal from inside that it has no handler for.
"""

from __future__ import annotations

import os
import signal
import sys

_CHANGED = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
"""Python sets these for itself; the command finds them as a shell would hand them on."""


def main(status: int, command: list[str]) -> None:
    """Run the command, and stay until killed."""
    os.set_inheritable(status, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            for number in _CHANGED:
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)  # noqa: S606 - no shell is the point
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    while True:
        try:
            pid, ended = os.wait()
        except ChildProcessError:
            signal.pause()
            continue
        if pid == child:
            os.write(status, b"%d\n" % ended)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[3:])
