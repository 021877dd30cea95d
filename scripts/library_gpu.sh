#!/bin/bash
# Tests and measures graphreplay on a GPU machine without network. Run it where `python3` has torch, lightning and pytest,
# with what scripts/gpu_bundle.sh packed in .gpu; the commit in there is what is installed, tested and measured.
#
#   scripts/library_gpu.sh STEP[:SECONDS[:CASES]]...
#
# Steps, in the given order, each within its own seconds; one that fails does not keep the later ones from running:
#   tests          suite `cuda`                                             -> tests.xml
#   tests-2.5.4    the same under lightning 2.5.4, autocast's cache on      -> tests-2.5.4.xml
#   parity         suite `parity`                                           -> parity.xml
#   parity-2.5.4   the same under lightning 2.5.4                           -> parity-2.5.4.xml
#   cures          each cure taken out; the tests that must see it          -> cures.json
#   bench          benchmarks/replay.py: the cases that fit CASES (all)     -> replay.jsonl
#   musgd          benchmarks/musgd.py                                      -> musgd.jsonl
#   host           benchmarks/host.py: where a replayed step's host time is -> host.txt
# CASES is a pattern like 'memory-*'. JOBS is how many processes share the tests, by pytest-xdist, and the cures; without
# it, tests have one and cures four. All that is printed goes to log.txt too. Results lie in $OUT (default: .gpu/out).
# PYTEST_ADDOPTS narrows the tests.
# PYTHON names another interpreter; DEVICE=cpu tries the plumbing without a GPU.
set -uo pipefail
cd "$(dirname "$0")/.."
packed=${PACKED:-$PWD/.gpu}
out=${OUT:-$packed/out}
python=$(command -v "${PYTHON:-python3}")
device=${DEVICE:-cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

kind=gpu marker="(gpu or data) and not parity and not long"
[ "$device" = cuda ] || kind=cpu marker="not gpu and not overfit"
export CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

layer() { # FOLDER [WHEEL...]: an environment over the interpreter's own packages, with graphreplay and these wheels
    "$uv" venv --quiet --offline --python "$python" "$1" &&
        "$1/bin/python" - "$site" <<'PY' &&
import pathlib, sys, sysconfig
line = f"import site; site.addsitedir({sys.argv[1]!r})\n"
pathlib.Path(sysconfig.get_path("purelib"), "zz_image.pth").write_text(line)
PY
        "$uv" pip install --quiet --offline --no-deps --python "$1" "$work/checkout/library" "${@:2}"
}

set_up() {
    "$python" -m pip --version >/dev/null 2>&1 && pip=("$python" -m pip) || pip=(python3 -m pip)
    "${pip[@]}" install --quiet --disable-pip-version-check --no-index --no-deps --target "$work/uv" "$packed"/wheels/uv-*.whl &&
        git clone --quiet --branch gpu-run "$packed/replaybench.bundle" "$work/checkout" || return
    uv=$work/uv/bin/uv
    export UV_CACHE_DIR=$work/uv-cache UV_PYTHON_DOWNLOADS=never
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    local pytest=()
    "$python" -c 'import pytest' 2>/dev/null || pytest=("$packed"/pytest/*.whl)
    layer "$work/newest" ${pytest[@]+"${pytest[@]}"} || return
    cd "$work/checkout" || return
    git log -1 --format='%H %s'
    "$work/newest/bin/python" - <<'PY'
import importlib.metadata, sys, torch
names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, lightning {importlib.metadata.version('lightning')}, {names}")
PY
}

run_tests() { # ENVIRONMENT SECONDS REPORT MARKER
    "$1/bin/python" -c 'import lightning; print("lightning", lightning.__version__)'
    timeout --kill-after=10 "$2" "$1/bin/python" -m pytest tests/library -m "$4" -rs -q -p no:cacheprovider \
        -p no:benchmark --durations=20 "--junitxml=$out/$3" ${JOBS:+-n "$JOBS"}
}

older() { # The environment with lightning 2.5.4, made once
    [ -x "$work/older/bin/python" ] || layer "$work/older" "$packed"/lightning-2.5.4/*.whl
}

run_step() { # STEP SECONDS CASES
    case $1 in
    tests) run_tests "$work/newest" "$2" tests.xml "$marker" ;;
    tests-2.5.4) older && run_tests "$work/older" "$2" tests-2.5.4.xml "$marker" ;;
    parity) run_tests "$work/newest" "$2" parity.xml parity ;;
    parity-2.5.4) older && run_tests "$work/older" "$2" parity-2.5.4.xml parity ;;
    cures)
        # The step `tests` shows that they pass with every cure in place.
        timeout --kill-after=10 "$2" "$work/newest/bin/python" scripts/cures.py "$kind" --no-baseline --jobs "${JOBS:-4}" \
            --budget "$(($2 - 15))" --out "$out/cures.json"
        ;;
    bench)
        timeout --kill-after=10 "$2" "$work/newest/bin/python" benchmarks/replay.py --device "$device" \
            --out "$out/replay.jsonl" --budget "$(($2 > 40 ? $2 - 20 : $2))" --only "${3:-*}"
        ;;
    musgd)
        timeout --kill-after=10 "$2" "$work/newest/bin/python" benchmarks/musgd.py >"$out/musgd.jsonl"
        local code=$?
        cat "$out/musgd.jsonl"
        return $code
        ;;
    host)
        timeout --kill-after=10 "$2" "$work/newest/bin/python" benchmarks/host.py --device "$device" >"$out/host.txt"
        local code=$?
        head -12 "$out/host.txt"
        return $code
        ;;
    *)
        echo "unknown step $1; the steps are tests, tests-2.5.4, parity, parity-2.5.4, cures, bench, musgd and host"
        return 2
        ;;
    esac
}

main() {
    set_up || { echo "the environment could not be set up (its words are above)"; return 3; }
    echo "== set up after $SECONDS s"
    local failed=0 argument step seconds cases began code
    for argument in "$@"; do
        IFS=: read -r step seconds cases <<<"$argument"
        seconds=${seconds:-280}
        began=$SECONDS
        echo "== $step, $seconds s at most"
        run_step "$step" "$seconds" "$cases"
        code=$?
        [ $code = 0 ] || failed=1
        echo "== $step ended with $code after $((SECONDS - began)) s (124 or 137: it ran out of time)"
    done
    return $failed
}

main "$@" 2>&1 | tee "$out/log.txt"
exit "${PIPESTATUS[0]}"
