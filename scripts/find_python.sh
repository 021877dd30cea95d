#!/bin/sh
# Prints the newest Python from 3.11 on that is on PATH and really starts: a version manager's shim may not.
for name in python3.15 python3.14 python3.13 python3.12 python3.11 python3 python; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        "$name" -c 'import sys; print(sys.executable)'
        exit 0
    fi
done
echo "Python 3.11 or newer is not on PATH; install one, then run make again" >&2
exit 1
