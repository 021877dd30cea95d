"""Where the host's time goes in a replayed step: each part's milliseconds, and the functions that take most of them.

    python benchmarks/host.py [--steps 200] [--precision bf16] [--count 2] [--size 320] [--device cuda]

A small batch, so that the host and not the GPU sets the pace. Parts are timed without a profiler, each step from an
idle GPU, so that no part waits for it; medians over the steps. The profile is cProfile's, over as many further steps,
with the backward on the calling thread, where it can be seen; it makes Python slower and torch's own code not.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import statistics
import time

import torch
from detector import loss_of
from measuring import environment, synchronize
from replay_cases import Case, Fit, Rounds, build, region

WAYS = ("native", "graphreplay", "make_graphed_callables")
PARTS = ("forward", "loss", "backward", "optimizer")
FUNCTIONS = 40


def timed_step(fit: Fit, batches: Rounds) -> dict[str, float]:
    """One step's parts, in milliseconds of the host."""
    images, targets = batches.take()
    synchronize(fit.device)
    times = [time.perf_counter()]
    with region(fit.case, fit.device):
        outputs = fit.way.call(images)
        times.append(time.perf_counter())
        loss = loss_of(outputs, targets)
    times.append(time.perf_counter())
    fit.scaler.scale(loss).backward()
    times.append(time.perf_counter())
    fit.scaler.step(fit.optimizer)
    fit.scaler.update()
    fit.optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter())
    return {part: (end - start) * 1e3 for part, start, end in zip(PARTS, times[:-1], times[1:], strict=True)}


def profiled(fit: Fit, batches: Rounds, steps: int) -> str:
    """The functions with the most time of their own, over all steps."""
    profiler = cProfile.Profile()
    with torch.autograd.set_multithreading_enabled(False):
        profiler.enable()
        for _ in range(steps):
            fit.step(batches.take())
        profiler.disable()
    synchronize(fit.device)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(FUNCTIONS)
    return text.getvalue()


def main() -> None:
    """Prints the parts of every way, then the profiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="bf16")
    parser.add_argument("--count", type=int, default=2, help="images in a batch")
    parser.add_argument("--size", type=int, default=320, help="their height and width")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    ways = WAYS if options.device == "cuda" else ("native",)
    case = Case("speed", options.precision, options.count, options.size, ways)
    batches = Rounds(case, options.device)
    fits = {name: Fit(build(name, case, options.device), case, options.device) for name in ways}
    print(json.dumps({"environment": environment(options.device), **vars(options)}))
    for fit in fits.values():
        for _ in range(10):
            fit.step(batches.take())
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(options.steps):
        for name, fit in fits.items():
            found[name].append(timed_step(fit, batches))
    for name, steps in found.items():
        medians = {part: round(statistics.median(step[part] for step in steps), 4) for part in PARTS}
        print(json.dumps({"way": name, "host_ms": medians, "sum": round(sum(medians.values()), 4)}), flush=True)
    for name in ways[1:] or ways:
        print(f"\n== {name}: {options.steps} steps, by own time")
        print(profiled(fits[name], batches, options.steps), flush=True)


if __name__ == "__main__":
    main()
