"""What a step of MuSGD takes: batched, one by one, and torch.optim.Muon, over the same matrices.

    python benchmarks/musgd.py [--rounds 21] [--steps 5] [--width 16] [--depth 3]

It needs torch, lightning and graphreplay, and measures on the CUDA device; without one on the CPU, and says so. All
ways have their turn in every round. Prints JSON lines: one for each way, with its median, and one of ratios of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial

import torch
from detector import Detector
from measuring import environment, in_turn, synchronize, wall
from torch import nn

from graphreplay.optim import MuSGD
from graphreplay.optim.buckets import buckets, is_matrix

# A name, and over which other's time its own is divided. The first two are limits that the project sets itself.
RATIOS = (
    ("one by one", "batched"),
    ("torch.optim.Muon", "batched"),
    ("torch.optim.SGD, all weights", "batched, all weights"),
    ("batched, channels_last", "batched"),
)


def copies(weights: list[nn.Parameter], shape: Callable[[torch.Tensor], torch.Tensor]) -> list[nn.Parameter]:
    """Weights of their own with the same values, and gradients that stay the same."""
    made = [nn.Parameter(shape(weight.detach().clone())) for weight in weights]
    for index, weight in enumerate(made):
        random = torch.Generator(weight.device).manual_seed(index)
        weight.grad = torch.empty_like(weight).normal_(generator=random)
    return made


def as_it_is(weight: torch.Tensor) -> torch.Tensor:
    return weight


def channels_last(weight: torch.Tensor) -> torch.Tensor:
    return weight.contiguous(memory_format=torch.channels_last) if weight.ndim == 4 else weight


def flat(weight: torch.Tensor) -> torch.Tensor:
    """The matrix itself, since Muon takes 2 dimensions alone."""
    return weight.flatten(1)


def contenders(network: nn.Module) -> dict[str, torch.optim.Optimizer]:
    """Optimizers over copies of the network's weights."""
    everything = list(network.parameters())
    matrices = [weight for weight in everything if is_matrix(weight)]
    found: dict[str, torch.optim.Optimizer] = {
        "batched": MuSGD(copies(matrices, as_it_is), lr=1e-4),
        "one by one": MuSGD(copies(matrices, as_it_is), lr=1e-4, batched=False),
        "batched, channels_last": MuSGD(copies(matrices, channels_last), lr=1e-4),
        "batched, all weights": MuSGD(copies(everything, as_it_is), lr=1e-4),
        "torch.optim.SGD, all weights": torch.optim.SGD(
            copies(everything, as_it_is), lr=1e-4, momentum=0.9, nesterov=True
        ),
    }
    # It came with torch 2.9.
    if hasattr(torch.optim, "Muon"):
        found["torch.optim.Muon"] = torch.optim.Muon(copies(matrices, flat), lr=1e-4, weight_decay=0.0, momentum=0.9)
    return found


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=5, help="in each turn")
    parser.add_argument("--width", type=int, default=16, help="the network's channels after the stem")
    parser.add_argument("--depth", type=int, default=3, help="residual pairs in a block; 3 makes 103 matrices")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print(json.dumps({"note": "no CUDA device: these are times of the CPU, where batching gains little"}))
    torch.manual_seed(0)
    network = Detector(options.width, options.depth).to(device)
    matrices = [weight for weight in network.parameters() if is_matrix(weight)]
    size = {"matrices": len(matrices), "buckets": len(buckets(matrices)), "weights": len(list(network.parameters()))}
    print(json.dumps({"environment": environment(device), **size, **vars(options)}), flush=True)
    optimizers = contenders(network)
    for optimizer in optimizers.values():
        for _ in range(3):
            optimizer.step()
    synchronize(device)
    ways = {name: partial(wall, optimizer.step, device, options.steps) for name, optimizer in optimizers.items()}
    medians = in_turn(ways, options.rounds)
    for name, milliseconds in medians.items():
        print(json.dumps({"optimizer": name, "step_ms": round(milliseconds, 4)}))
    ratios = {f"{one} / {other}": round(medians[one] / medians[other], 3) for one, other in RATIOS if one in medians}
    print(json.dumps({"ratios": ratios}))


if __name__ == "__main__":
    main()
