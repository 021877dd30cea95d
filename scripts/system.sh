# Sourced by scripts that need a running system of their own: start_system FOLDER, and it stops when the script ends.

start_system() {
    export REPLAYBENCH_DATA_DIR=$1
    mkdir -p "$REPLAYBENCH_DATA_DIR"
    replaybench up --port 0 >"$REPLAYBENCH_DATA_DIR/up.log" 2>&1 &
    SYSTEM=$!
    trap 'kill "$SYSTEM" 2>/dev/null; wait "$SYSTEM" 2>/dev/null' EXIT
    local left=600
    until grep -q '^ready: ' "$REPLAYBENCH_DATA_DIR/up.log"; do
        if ! kill -0 "$SYSTEM" 2>/dev/null || [ $((left -= 1)) -le 0 ]; then
            echo "the system did not become ready:" >&2
            cat "$REPLAYBENCH_DATA_DIR/up.log" >&2
            return 1
        fi
        sleep 0.2
    done
    grep '^ready: ' "$REPLAYBENCH_DATA_DIR/up.log"
}

# export_job JOB FILE: the evidence as FILE.json, the table as FILE.md.
export_job() {
    replaybench export "$1" --output "$2.json"
    replaybench table "$1" --format markdown >"$2.md"
    cat "$2.md"
}

# The number of the newest job.
newest_job() {
    replaybench jobs --limit 1 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])'
}
