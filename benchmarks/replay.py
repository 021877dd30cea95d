"""How near replay comes to what the GPU needs, beside native training and its peers, case by case.

    python benchmarks/replay.py [--out replay.jsonl] [--quick] [--only PATTERN] [--budget SECONDS] [--device cuda]

It needs torch, lightning and graphreplay, and one CUDA device (with `--device cpu` only the native way is run, to try
the plumbing, and the host's share of a replay is timed). Each case runs in a process of its own and appends a line of
JSON to `--out`. A later call leaves out what is there of the same machine, versions and graphreplay source, and tries
again what failed. Ratios are of medians of rounds in one process, in which all ways have their turn. The cases `task-*`
time whole steps of Lightning fits of the four tasks. At the end it prints Markdown tables of all results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from measuring import environment
from replay_cases import Case, measure
from replay_tables import tables
from task_steps import TaskCase, measure_task, task_cases

PRECISIONS = ("bf16", "fp16", "fp32")
PEERS = ("native", "graphreplay", "make_graphed_callables")
COMPILE = ("native", "compile")
# torch.compile alone took 75 s for its first step on this network.
CASE_LIMIT_S = 400
QUICK_BUDGET_S = 165


def cases(device: str, quick: bool) -> list[Case | TaskCase]:
    """What there is to measure, the most telling first."""
    if device == "cpu":
        alone = [Case(kind, "fp32", 2, 64, ("native",)) for kind in ("speed", "bits")]
        return [*alone, Case("host", "fp32", 2, 64, ("graphreplay",)), *task_cases(("fp32",), (2,), 64)]
    if quick:
        return [
            Case("speed", "bf16", 2, 320, PEERS),
            Case("speed", "bf16", 8, 320, PEERS),
            Case("host", "bf16", 2, 320, PEERS[1:]),
            Case("bits", "bf16", 8, 320, PEERS),
            *(Case("memory", "bf16", 8, 0, (way,)) for way in PEERS[:2]),
            TaskCase("pose", "bf16", 8),
        ]
    sizes = ((2, 320), (8, 320), (16, 640))
    return [
        *(Case("speed", precision, count, size, PEERS) for count, size in sizes for precision in PRECISIONS),
        Case("host", "bf16", 2, 320, PEERS[1:]),
        *(Case("bits", precision, 8, 320, PEERS) for precision in PRECISIONS),
        *(Case("memory", precision, 8, 0, (way,)) for precision in PRECISIONS for way in PEERS[:2]),
        Case("speed", "bf16", 8, 320, ("native", "graphreplay", "compile")),
        Case("bits", "bf16", 8, 320, COMPILE),
        *task_cases(PRECISIONS, (8, 2)),
    ]


def run_apart(case: Case, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """The case's result by a process of its own within `limit` seconds, or why there is none.

    A broken CUDA context ends with its process.
    """
    with tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, __file__, "--case", case.id, "--result", str(result), "--device", options.device]
        command += ["--quick"] if options.quick else []
        with log.open("w") as stream:
            # In a group of its own, with the compiler's workers, which would outlive it.
            child = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code: int | str = child.wait(limit)
            except subprocess.TimeoutExpired:
                code = f"stopped after {limit:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if result.exists():
            return {"result": json.loads(result.read_text())}
        return {"error": f"exit {code}", "log": log.read_text(errors="replace")[-3000:]}


def read(out: Path, there: dict[str, Any], quick: bool) -> dict[str, dict[str, Any]]:
    """The results so far that were measured here and alike, by case."""
    lines = out.read_text().splitlines() if out.exists() else []
    rows = [row for line in lines if (row := _parsed(line))]
    return {row["case"]: row for row in rows if row["environment"] == there and row["quick"] == quick}


def _parsed(line: str) -> dict[str, Any] | None:
    """None for the half of a line that an interrupted run may have left."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def parsed_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("replay.jsonl"), help="results, one line a case")
    parser.add_argument("--quick", action="store_true", help="few cases and rounds, within three minutes")
    parser.add_argument("--only", default="*", help="cases whose ids fit this pattern, like 'memory-*'")
    parser.add_argument("--budget", type=float, help="seconds for all; cases beyond are left for a later call")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.budget is None:
        options.budget = QUICK_BUDGET_S if options.quick else float("inf")
    return options


def measure_here(options: argparse.Namespace) -> None:
    """What the process of one case does."""
    case = next(case for case in cases(options.device, options.quick) if case.id == options.case)
    ways = measure_task if isinstance(case, TaskCase) else measure
    result = json.dumps(ways(case, options.device, options.quick))
    options.result.write_text(result)


def main() -> int:
    """Measures what is still to be measured; the exit code is 1 where a case failed or is left."""
    options = parsed_options()
    if options.case is not None:
        measure_here(options)
        return 0
    began, there = time.monotonic(), environment(options.device)
    wanted = [case for case in cases(options.device, options.quick) if fnmatchcase(case.id, options.only)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.out.exists() and not options.out.read_bytes().endswith(b"\n"):
        with options.out.open("a") as stream:
            stream.write("\n")
    for case in wanted:
        done = read(options.out, there, options.quick).get(case.id, {})
        left = options.budget - (time.monotonic() - began)
        if "result" in done or left <= 0:
            continue
        start = time.monotonic()
        row = {
            "case": case.id,
            "quick": options.quick,
            "environment": there,
            **run_apart(case, options, min(CASE_LIMIT_S, left)),
        }
        with options.out.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(f"{case.id}: {row.get('error', 'measured')}, {time.monotonic() - start:.0f} s", flush=True)
    rows = read(options.out, there, options.quick)
    print(tables(there, [(case, rows.get(case.id, {})) for case in wanted]))
    return int(any("result" not in rows.get(case.id, {}) for case in wanted))


if __name__ == "__main__":
    sys.exit(main())
