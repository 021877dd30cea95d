"""The optimizers by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from graphreplay.optim import MuSGD
from graphreplay.tasks.modules.options import FitOptions

_MOMENTUM = 0.9


def optimizer_of(network: nn.Module, options: FitOptions) -> torch.optim.Optimizer:
    """The optimizer of a network's weights, which decays neither biases nor norms."""
    groups: list[dict[str, Any]] = MuSGD.groups(network, options.weight_decay)
    if options.optimizer == "musgd":
        return MuSGD(groups, lr=options.rate, momentum=_MOMENTUM)
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, options.rate, momentum=_MOMENTUM, nesterov=True)
    return torch.optim.AdamW(groups, options.rate)
