#!/bin/bash
# Packs what a GPU machine without network needs for scripts/gpu_run.sh, into the ignored folder .gpu: the commit as a git
# bundle, the application's wheels for Python 3.12 on Linux x86-64, lightning 2.5.4 for the second host runtime, pytest for
# an image that lacks it, and bubblewrap where it is installed here, so that the tests run in a sandbox there too;
# scripts/library_gpu.sh runs the library alone from the same folder.
#
#   scripts/gpu_bundle.sh [COMMIT]
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent setup
uv=.tools/uv/bin/uv

mkdir -p .gpu
rm -rf .gpu/wheels .gpu/lightning-2.5.4 .gpu/pytest
git rev-parse "${1:-HEAD}" >.gpu/commit
git branch --force gpu-run "$(cat .gpu/commit)"
git bundle create --quiet .gpu/replaybench.bundle gpu-run
git branch --quiet --delete --force gpu-run

fetch() { # FOLDER NAME==VERSION…: wheels of exactly these
    local folder=$1
    shift
    local platforms=()
    for tag in manylinux_2_34 manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_24 manylinux_2_17 manylinux2014; do
        platforms+=(--platform "${tag}_x86_64")
    done
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp "${platforms[@]}" --dest "$folder" "$@"
}

# The locked versions; a GPU image has torch and lightning of its own.
$uv export --quiet --frozen --no-dev --no-hashes --no-emit-project --no-annotate 2>/dev/null |
    sed -e '/^#/d' -e 's/ *;.*//' | grep -v -i -E '^(tzdata|colorama|pywin32)' >.gpu/requirements.txt
fetch .gpu/wheels $(cat .gpu/requirements.txt) uv==0.13.9
fetch .gpu/lightning-2.5.4 lightning==2.5.4
fetch .gpu/pytest pytest==9.2.0 pluggy==1.6.0 iniconfig==2.3.0 packaging pygments
if command -v bwrap >/dev/null; then install -D "$(command -v bwrap)" .gpu/bin/bwrap; fi
du -sh .gpu
