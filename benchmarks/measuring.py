"""What the GPU benchmarks share: rounds in turn, medians, GPU-busy time, and what they were measured on."""

from __future__ import annotations

import hashlib
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import graphreplay


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def wall(step: Callable[[], object], device: str, steps: int) -> float:
    """Milliseconds a step, by the host's clock, from an idle GPU to an idle GPU."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return (time.perf_counter() - start) * 1e3 / steps


def between_events(step: Callable[[], object], steps: int) -> float:
    """Milliseconds a step, by CUDA events around all of them; the GPU's waiting for the host counts.

    One step goes before, so that the first of them does not begin on an idle GPU: a fit has that once.
    """
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    step()
    first.record()
    for _ in range(steps):
        step()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / steps


def gpu_busy(step: Callable[[], object], steps: int = 5) -> float | None:
    """Milliseconds a step in which the GPU computes or copies: the sum over its kernels, as torch's profiler sees it.

    Measure it last: the profiler slows down what comes after it. None where it saw nothing.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    total = sum(event.self_device_time_total for event in seen.key_averages())
    return total / 1e3 / steps or None


def in_turn(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Each way's median over rounds in which all have their turn, so that drifts of the host meet all alike."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            found[name].append(measure())
    return {name: statistics.median(times) for name, times in found.items()}


def environment(device: str) -> dict[str, str | None]:
    """The machine and the versions."""
    cuda = device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else f"CPU {platform.machine()}",
        "driver": _driver() if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()) if cuda else None,
        "python": platform.python_version(),
        "lightning": metadata.version("lightning"),
        "graphreplay": f"{metadata.version('graphreplay')} (source {_source_of_graphreplay()})",
    }


def _source_of_graphreplay() -> str:
    """A digest of the installed source, since its version does not change with every commit."""
    folder = Path(graphreplay.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.split("\n")[0].strip() or "unknown"
