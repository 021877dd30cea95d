"""The Markdown tables of benchmarks/replay.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from replay_cases import Case
from task_steps import TaskCase

Rows = Sequence[tuple[Any, dict[str, Any]]]

_SPEED = """\
A whole step: forward, eager loss, backward, fused SGD. Milliseconds, medians of rounds in which all ways have their
turn. GPU-busy is the sum of a native step's kernel times, which no way can undercut with the same kernels."""
_PART = """\
The network's forward and backward alone, by CUDA events, against the sum of its own kernel times."""
_BITS = """\
After 12 steps: losses, weights, buffers, momenta and scale against native's, in bits, stepping every batch and every
second one. A peer's warm-up is undone before."""
_HOST = """\
Microseconds of the host in a forward and in a backward of the network alone, with graphs that launch nothing."""
_MEMORY = """\
The most memory reserved over five layouts (batch 8, 256 to 384 px, accumulation 2); each way in its own process."""

_TASKS = """\
A whole step of a Lightning fit, data excluded: forward, eager loss, backward, MuSGD, average of weights, and what the
Trainer does around them. Milliseconds, medians of fits in which both ways have their turn. Of the step: the network's
forward and backward, the loss's, and the rest, between points on the GPU's clock, which waits for the host too."""


def tables(there: dict[str, Any], rows: Rows) -> str:
    """All tables, with what they were measured on and what is missing."""
    done = [(case, row["result"]) for case, row in rows if "result" in row]
    missing = [f"- {case.id}: {row.get('error', 'not run yet')}" for case, row in rows if "result" not in row]
    told = ", ".join(f"{name} {value}" for name, value in there.items() if value is not None)
    parts = [f"Measured on {told}.", *_speed(done), *_host(done), *_bits(done), *_memory(done), *_tasks(done)]
    return "\n\n".join([*parts, "Missing:\n\n" + "\n".join(missing)] if missing else parts)


def _speed(done: Rows) -> Iterable[str]:
    found = [(case, result) for case, result in done if case.kind == "speed"]
    head = (
        "case",
        "native",
        "graphreplay",
        "peer",
        "native / ours",
        "ours / peer",
        "GPU-busy",
        "recording s",
        "ready s",
    )
    yield _SPEED
    yield _table(head, [_step_row(case, result) for case, result in found])
    yield _PART
    head = ("case", "native", "graphreplay", "peer", "ours busy", "ours / busy", "native busy")
    yield _table(head, [_part_row(case, result) for case, result in found if "part_ms" in result])


def _name(case: Case) -> str:
    return f"{case.precision}, batch {case.count}, {case.size} px"


def _peer(case: Case) -> str:
    return next((way for way in case.ways if way not in ("native", "graphreplay")), "")


def _step_row(case: Case, result: dict[str, Any]) -> list[str]:
    step, peer = result["step_ms"], _peer(case)
    native, ours, theirs = step["native"], step.get("graphreplay"), step.get(peer)
    return [
        _name(case),
        _number(native),
        _number(ours),
        f"{_number(theirs)} ({peer})" if peer else "-",
        _ratio(native, ours),
        _ratio(ours, theirs),
        _number(result.get("step_busy_ms", {}).get("native")),
        _number(result["recording_s"]),
        ", ".join(f"{way} {_number(seconds)}" for way, seconds in result["ready_s"].items() if way != "native") or "-",
    ]


def _part_row(case: Case, result: dict[str, Any]) -> list[str]:
    part, busy = result["part_ms"], result["part_busy_ms"]
    ours, own = part.get("graphreplay"), busy.get("graphreplay")
    return [
        _name(case),
        _number(part["native"]),
        _number(ours),
        _number(part.get(_peer(case))),
        _number(own),
        _ratio(ours, own),
        _number(busy["native"]),
    ]


def _host(done: Rows) -> Iterable[str]:
    lines = [
        [_name(case), way, _number(result["host_us"][way], 0), _number(result["host_backward_us"][way], 0)]
        for case, result in done
        if case.kind == "host"
        for way in case.ways
    ]
    yield _HOST
    yield _table(("case", "way", "forward", "backward"), lines)


def _bits(done: Rows) -> Iterable[str]:
    lines = [
        [case.precision, f"{way} again" if way == "native" else way, *(_told(found[window]) for window in ("1", "2"))]
        for case, result in done
        if case.kind == "bits"
        for way, found in result["differences"].items()
    ]
    yield _BITS
    yield _table(("precision", "way", "every batch", "every second batch"), lines)


def _told(difference: str) -> str:
    return difference.replace("|", "/") or "native, bit for bit"


def _memory(done: Rows) -> Iterable[str]:
    peak = {(case.precision, case.ways[0]): result["reserved_mib"] for case, result in done if case.kind == "memory"}
    lines = []
    for precision in dict.fromkeys(precision for precision, _ in peak):
        native, ours = peak.get((precision, "native")), peak.get((precision, "graphreplay"))
        lines.append([precision, _number(native, 0), _number(ours, 0), _ratio(ours, native)])
    yield _MEMORY
    yield _table(("precision", "native MiB", "graphreplay MiB", "ours / native"), lines)


def _tasks(done: Rows) -> Iterable[str]:
    found = [(case, result) for case, result in done if case.kind == "task"]
    if not found:
        return
    head = ("case", "native", "graphreplay", "native / ours", "network", "ours", "loss", "ours", "rest", "ours")
    yield _TASKS
    yield _table((*head, "network's share", "ours"), [_task_row(case, result) for case, result in found])


def _task_row(case: TaskCase, result: dict[str, Any]) -> list[str]:
    step, parts = result["step_ms"], result["parts_ms"]
    native, ours = parts["native"], parts["graphreplay"]
    pieces = [_number(way[name]) for name in ("network", "loss", "rest") for way in (native, ours)]
    shares = [f"{way['network'] / sum(way.values()):.0%}" for way in (native, ours)]
    name = f"{case.task}, {case.precision}, batch {case.count}, {case.size} px"
    both = step["native"], step["graphreplay"]
    return [name, *map(_number, both), _ratio(*both), *pieces, *shares]


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ratio(one: float | None, other: float | None) -> str:
    return "-" if one is None or not other else f"{one / other:.2f}"
