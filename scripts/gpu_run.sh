#!/bin/bash
# Brings the embedded system up on a GPU machine without network, and has it prove the commit: suite `cuda` at the commit
# and at commit plus probe, under two host runtimes that differ in lightning. Run it where `python3` has torch, with what
# scripts/gpu_bundle.sh packed lying in .gpu; results go to the folder $OUT (default: .gpu/out).
#
#   scripts/gpu_run.sh [--plain]
#
# With --plain the commit alone. Leaves in $OUT: cuda.json and cuda.md (evidence and table), probe-failures.txt (the ids
# that fail with the probe), machine.txt, workers.json and gpus.json (the cards, as the worker tells of them), and
# logs.tar.gz: the system's logs and every attempt's.
set -euo pipefail
cd "$(dirname "$0")/.."
plain=${1:-}
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
layer=$work/lightning-2.5.4
uv venv --quiet --python "$image" "$layer"
"$layer/bin/python" - "$site" <<'PY'
import pathlib, sys, sysconfig
line = f"import site; site.addsitedir({sys.argv[1]!r})\n"
pathlib.Path(sysconfig.get_path("purelib"), "zz_image.pth").write_text(line)
PY
uv pip install --quiet --python "$layer" --no-index --no-deps "$packed"/lightning-2.5.4/*.whl
export REPLAYBENCH_HOST_RUNTIMES=$image:$layer/bin/python
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
for python in "$image" "$layer/bin/python"; do
    runtimes+=(--runtime "$("$python" -c '
import lightning, sys, torch
version, _, build = torch.__version__.partition("+")
print(f"py{sys.version_info[0]}.{sys.version_info[1]}-torch{version}-{build}-pl{lightning.__version__}")')")
done
probe=probes/live-gradient-copy-in-backward.patch
with_probe=(--probe "$probe" --with-plain)
[ "$plain" != --plain ] || with_probe=()
submitted=0
replaybench submit --repository replaybench --tree "$(git rev-parse HEAD)" ${with_probe[@]+"${with_probe[@]}"} \
    "${runtimes[@]}" --suite cuda --work-package WP-001 --label "GPU run" --reason scripts/gpu_run.sh --watch || submitted=$?
job=$(newest_job)
export_job "$job" "$out/cuda"
tar --create --gzip --file "$out/logs.tar.gz" --directory "$work/data" logs artifacts

if [ "$plain" = --plain ]; then
    echo "job $job ended; the submission's exit code was $submitted"
    exit "$submitted"
fi

# The probe must fail exactly the ids on the list, under both runtimes, and the commit none.
differs=0
"$work/app/bin/python" scripts/compare_probe.py "$out/cuda.json" probes/live-gradient-copy-in-backward.expected.txt \
    "$out/probe-failures.txt" || differs=$?
echo "job $job ended; the submission's exit code was $submitted (1 is expected: the probe fails)"
exit "$differs"
