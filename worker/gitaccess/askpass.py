"""What git asks for a user name and a password: it hands the question to the gate, and prints the answer.

``askpass.py PROMPT``, run by git. It holds nothing itself; the gate looks at who asks, and for which host.
"""

from __future__ import annotations

import os
import socket
import sys

SOCKET = "GITACCESS_SOCKET"


def main() -> int:
    """Ask the gate. The exit code: 1 where it has no answer, which git takes for a refusal."""
    with socket.socket(socket.AF_UNIX) as gate:
        gate.connect(os.environ[SOCKET])
        gate.sendall(sys.argv[1].encode("utf-8", "replace") + b"\n")
        answer = b"".join(iter(lambda: gate.recv(4096), b""))
    sys.stdout.buffer.write(answer)
    return 0 if answer else 1


if __name__ == "__main__":
    sys.exit(main())
