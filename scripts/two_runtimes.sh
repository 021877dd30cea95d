#!/bin/bash
# This repository at two commits x two real runtimes of different Pythons and torch builds, through the whole system:
#
#   scripts/two_runtimes.sh [COMMIT COMMIT]      (default: HEAD and its parent)
#
# Builds what is not there yet: a CPU build of torch for Python 3.11 and a CUDA build for Python 3.13, 6 GB together.
# Writes .cache/two-runtimes/evidence.json and .md. FIRST and SECOND name other runtimes.
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent setup
PATH=$PWD/.venv/bin:$PATH
. scripts/system.sh

first=${FIRST:-py3.11-torch2.13.0-cpu-pl2.6.6}
second=${SECOND:-py3.13-torch2.14.1-cu130-pl2.6.6}
new=$(git rev-parse "${1:-HEAD}")
old=$(git rev-parse "${2:-HEAD~1}")

start_system "$PWD/.cache/two-runtimes"
replaybench repos add replaybench "$PWD"
code=0
replaybench submit --repository replaybench --tree "$new" --tree "$old" --runtime "$first" --runtime "$second" \
    --suite gate --label "two runtimes" --reason "scripts/two_runtimes.sh" --watch || code=$?
export_job "$(newest_job)" .cache/two-runtimes/evidence
exit $code
