#!/bin/bash
# Brings the embedded system up on a GPU machine without network, and has it prove the commit: suites at the commit and at
# commit plus probe, under two host runtimes that differ in lightning. Run it where `python3` has torch, with what
# scripts/gpu_bundle.sh packed lying in .gpu; results go to the folder $OUT (default: .gpu/out).
#
#   scripts/gpu_run.sh [--plain] [--suite NAME[:EXPR]]... [--runtime newest|older|both] [--work-package NAME]
#
#   --plain              the commit alone, without the probe
#   --suite NAME[:EXPR]  a suite of replaybench.toml, each a job of its own (default: cuda); of it, what fits pytest's -k EXPR
#   --runtime newest     the image's own lightning alone; older: lightning 2.5.4 alone; both (the default): each
#   --work-package NAME  what the jobs belong to (default: WP-001)
#
# Leaves in $OUT, for each --suite: SUITE.json and SUITE.md (evidence and table; of SUITE:EXPR, SUITE-EXPR.json and .md with
# dashes for what is no letter), and with the probe SUITE-probe-failures.txt (the ids that fail with it); and once
# machine.txt, workers.json and gpus.json (the cards, as the worker tells of them), and logs.tar.gz: the system's logs and
# every attempt's. Of what probes/ lists, everything that was run must fail with the probe, and nothing without.
set -euo pipefail
plain= suites=() which=both work_package=WP-001
usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }
refuse() { echo "scripts/gpu_run.sh: $1; --help shows the options" >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
    --plain) plain=1 ;;
    --suite | --runtime | --work-package)
        [ -n "${2:-}" ] || refuse "$1 needs a value"
        case $1 in
        --suite) suites+=("$2") ;;
        --runtime) which=$2 ;;
        --work-package) work_package=$2 ;;
        esac
        shift
        ;;
    --help | -h) usage && exit ;;
    *) refuse "unknown argument $1" ;;
    esac
    shift
done
case $which in newest | older | both) ;; *) refuse "--runtime $which: choose newest, older or both" ;; esac
[ ${#suites[@]} -gt 0 ] || suites=(cuda)
cd "$(dirname "$0")/.."
packed=$PWD/.gpu
out=${OUT:-$packed/out}
work=$(mktemp -d)
mkdir -p "$out"

# The application, in an environment of its own: its wheels first, then what the image has.
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$work/uv" "$packed"/wheels/uv-*.whl
export PATH=$work/uv/bin:$packed/bin:$PATH UV_OFFLINE=1 UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR=$work/uv-cache
git clone --quiet --branch gpu-run "$packed/replaybench.bundle" "$work/checkout"
uv venv --quiet --python "$(command -v python3)" "$work/app"
uv pip install --quiet --python "$work/app" --no-index --no-deps "$packed"/wheels/*.whl
uv pip install --quiet --python "$work/app" --no-index --no-deps --editable "$work/checkout"

# Two host runtimes on the one torch. Lightning up to 2.5.4 trains with autocast's weight cache on, later ones with it off.
# The first is the image's own interpreter, the second a layer over it.
image=$(command -v python3)
pythons=()
[ "$which" = older ] || pythons+=("$image")
if [ "$which" != newest ]; then
    layer=$work/lightning-2.5.4
    uv venv --quiet --python "$image" "$layer"
    "$layer/bin/python" - "$site" <<'PY'
import pathlib, sys, sysconfig
line = f"import site; site.addsitedir({sys.argv[1]!r})\n"
pathlib.Path(sysconfig.get_path("purelib"), "zz_image.pth").write_text(line)
PY
    uv pip install --quiet --python "$layer" --no-index --no-deps "$packed"/lightning-2.5.4/*.whl
    pythons+=("$layer/bin/python")
fi
REPLAYBENCH_HOST_RUNTIMES=$(IFS=: && echo "${pythons[*]}")
export REPLAYBENCH_HOST_RUNTIMES
export REPLAYBENCH_BUILDS=false REPLAYBENCH_CACHE_DIR=$work/cache

cd "$work/checkout"
PATH=$work/app/bin:$PATH
. scripts/system.sh
{
    git log -1 --format='%H %s'
    "$image" -c 'import sys, torch; print(sys.version); print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name())'
    nvidia-smi --query-gpu=name,uuid,driver_version --format=csv
} | tee "$out/machine.txt"
start_system "$work/data"
replaybench workers
replaybench workers --json >"$out/workers.json"
replaybench worker gpus >"$out/gpus.json"
replaybench repos add replaybench "$work/checkout"
runtimes=()
for python in "${pythons[@]}"; do
    runtimes+=(--runtime "$("$python" -c '
import lightning, sys, torch
version, _, build = torch.__version__.partition("+")
print(f"py{sys.version_info[0]}.{sys.version_info[1]}-torch{version}-{build}-pl{lightning.__version__}")')")
done
probe=probes/live-gradient-copy-in-backward
with_probe=(--probe "$probe.patch" --with-plain)
[ -z "$plain" ] || with_probe=()

# One job after the other, and the evidence of each as soon as it has ended: the machine's time may run out.
bad=0 last=
for asked in "${suites[@]}"; do
    suite=${asked%%:*} name=${asked//[^[:alnum:]]/-} only=()
    [ "$suite" = "$asked" ] || only=(-k "${asked#*:}")
    submitted=0
    replaybench submit --repository replaybench --tree "$(git rev-parse HEAD)" ${with_probe[@]+"${with_probe[@]}"} \
        "${runtimes[@]}" --suite "$suite" ${only[@]+"${only[@]}"} --work-package "$work_package" --label "GPU run" --reason scripts/gpu_run.sh \
        --watch || submitted=$?
    job=$(newest_job) || job=$last
    if [ "$job" = "$last" ]; then
        echo "suite $suite was not taken; the submission's exit code was $submitted (its words are above)"
        bad=1
        continue
    fi
    last=$job
    export_job "$job" "$out/$name"
    # 1: a log grew meanwhile.
    tar --create --gzip --file "$out/logs.tar.gz" --directory "$work/data" logs artifacts || [ $? = 1 ]
    if [ -n "$plain" ]; then
        echo "job $job of suite $suite ended; the submission's exit code was $submitted"
        [ "$submitted" = 0 ] || bad=$submitted
        continue
    fi
    "$work/app/bin/python" scripts/compare_probe.py "$out/$name.json" "$probe.expected.txt" "$out/$name-probe-failures.txt" || bad=$?
    echo "job $job of suite $suite ended; the submission's exit code was $submitted (1 is expected: the probe fails)"
done
exit "$bad"
