"""Muon and SGD in one optimizer, with padded, batched orthogonalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from graphreplay.errors import OptionError
from graphreplay.optim.buckets import as_matrix, buckets, from_matrix, is_matrix, rate_factor
from graphreplay.optim.newton_schulz import orthogonalize, orthogonalize_padded

# The share of the Muon step beside the SGD step, whose share is 1.
MUON_SHARE = 0.2

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

Number = float | torch.Tensor


class MuSGD(Optimizer):
    """Muon plus SGD on weights of 2 and 4 dimensions, SGD on all others.

    One step, with gradient g, momentum mu, weight decay wd and learning rate lr. For a weight p of 2 or 4 dimensions

        m <- mu m + (1 - mu) g,  u = mu m + (1 - mu) g,  p <- p - lr 0.2 s NS(u)

    where NS orthogonalizes u as a matrix (out, rest), see `graphreplay.optim.newton_schulz`, and s is
    sqrt(max(1, size[-2] / size[-1])) of the weight as it is: 1 for a convolution with a square kernel. Then for every
    weight, the moved p included,

        g' = g + wd p,  b <- mu b + g',  p <- p - lr (g' + mu b)

    which is `torch.optim.SGD(nesterov=True)`, bit for bit where the rate and the momentum are floats. Muon is by Keller
    Jordan et al., https://kellerjordan.github.io/posts/muon/; its sum with SGD is the MuSGD of the YOLO family. Unlike
    `torch.optim.Muon` it decays weights in the SGD step alone, takes convolutions, and orthogonalizes in batches.

    Matrices of one parameter group that have the same number of columns, s, device and dtype are padded with zero rows
    and orthogonalized together, unless their rows span more than 16x. Bits depend on which matrices are together, as
    roundings depend on the padded shape: compare only runs of the same groups, with gradients for the same weights.
    A weight without a gradient is left out, its state too. Gradients are read, never written.

    Args:
        params: Weights, or parameter groups. `MuSGD.groups(network, weight_decay)` makes two of a network.
        lr: Learning rate, at least 0, in units of the weights for the Muon step (whose NS(u) has none). A tensor on the
            weights' device is read there and never on the host, so that a step can be captured into a CUDA graph; its
            roundings differ from a float's.
        momentum: mu, from 0 to below 1. A tensor likewise.
        weight_decay: wd, a float of at least 0. It applies to the whole group, biases and norms too: see `groups`.
        batched: False orthogonalizes one matrix after the other, for comparison: the same but for roundings, and slow.

    Raises:
        OptionError: An option is wrong, in `params` too.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Number = 0.01,
        momentum: Number = 0.9,
        weight_decay: float = 0.0,
        *,
        batched: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "batched": batched})

    @staticmethod
    def groups(network: nn.Module, weight_decay: float = 5e-4) -> list[dict[str, Any]]:
        """Two parameter groups: with `weight_decay`, and without it the biases and the weights of norms.

        A bias is a parameter with "bias" in its own name. A tied weight comes once. Empty groups are left out.
        """
        decayed: dict[nn.Parameter, None] = {}
        plain: dict[nn.Parameter, None] = {}
        for module in network.modules():
            for name, weight in module.named_parameters(recurse=False):
                spared = "bias" in name or isinstance(module, _NORMS)
                if weight not in decayed and weight not in plain:
                    (plain if spared else decayed)[weight] = None
        both = ((decayed, weight_decay), (plain, 0.0))
        return [{"params": list(weights), "weight_decay": decay} for weights, decay in both if weights]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add weights with options of their own, as in every torch optimizer.

        Raises:
            OptionError: An option is wrong, or a weight is complex.
        """
        _require_options({**self.defaults, **param_group})
        super().add_param_group(param_group)
        for weight in param_group["params"]:
            if weight.is_complex():
                self.param_groups.pop()
                raise OptionError(f"a weight of {tuple(weight.shape)} is complex; give its real view to the optimizer")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the weights that have a gradient.

        Args:
            closure: Computes loss and gradients anew; called first.

        Returns:
            The closure's result, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for device, weights in _by_device(group["params"]).items():
                self._step(group, device, weights)
        return loss

    def _step(self, group: dict[str, Any], device: torch.device, weights: list[nn.Parameter]) -> None:
        rate, momentum = _number(group["lr"], device), _number(group["momentum"], device)
        matrices = [weight for weight in weights if is_matrix(weight)]
        if matrices:
            updates = self._muon_updates(matrices, momentum)
            (_add_batched if group["batched"] else _add_one_by_one)(matrices, updates, rate)
        self._step_sgd(weights, rate, momentum, group["weight_decay"])

    def _muon_updates(self, weights: list[nn.Parameter], momentum: Number) -> list[torch.Tensor]:
        """Move the Muon momenta m, and return u, each as its m lies in memory."""
        gradients = [weight.grad for weight in weights]
        moments = [self._muon_momentum(weight) for weight in weights]
        torch._foreach_mul_(moments, momentum)
        _add_scaled(moments, gradients, 1 - momentum)
        updates = torch._foreach_mul(moments, momentum)
        _add_scaled(updates, gradients, 1 - momentum)
        return list(updates)

    def _muon_momentum(self, weight: nn.Parameter) -> torch.Tensor:
        state = self.state[weight]
        if "muon_momentum" not in state:
            state["muon_momentum"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return state["muon_momentum"]

    def _step_sgd(self, weights: list[nn.Parameter], rate: Number, momentum: Number, decay: float) -> None:
        """The operations of torch.optim.SGD in its order, since its bits are promised."""
        gradients: Sequence[torch.Tensor] = [weight.grad for weight in weights]
        if decay != 0:
            gradients = torch._foreach_add(gradients, weights, alpha=decay)
        old = [place for place, weight in enumerate(weights) if "momentum_buffer" in self.state[weight]]
        if old:
            kept = [self.state[weights[place]]["momentum_buffer"] for place in old]
            torch._foreach_mul_(kept, momentum)
            torch._foreach_add_(kept, [gradients[place] for place in old])
        for weight, gradient in zip(weights, gradients, strict=True):
            # Not zeros at first: 0.0 + -0.0 would lose the sign. And in the strides of the weight.
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.empty_like(weight).copy_(gradient)
        moments = [self.state[weight]["momentum_buffer"] for weight in weights]
        _add_scaled(weights, _plus_scaled(gradients, moments, momentum), -rate)


def _add_batched(weights: list[nn.Parameter], updates: list[torch.Tensor], rate: Number) -> None:
    """The Muon step, bucket by bucket."""
    for members in buckets(weights):
        first = weights[members[0]]
        images = orthogonalize_padded([as_matrix(updates[index]) for index in members])
        # Contiguous and in the weights' dtype, so that the matrices can be viewed as weights and added by one kernel.
        whole = torch.empty(images.shape, dtype=first.dtype, device=first.device).copy_(images)
        turned = [
            from_matrix(matrix[: updates[index].size(0)], updates[index])
            for index, matrix in zip(members, whole.unbind(), strict=True)
        ]
        _add_scaled([weights[index] for index in members], turned, -rate * (MUON_SHARE * rate_factor(first)))


def _add_one_by_one(weights: list[nn.Parameter], updates: list[torch.Tensor], rate: Number) -> None:
    """The Muon step, matrix by matrix."""
    for weight, update in zip(weights, updates, strict=True):
        image = orthogonalize(as_matrix(update)).to(weight.dtype).contiguous()
        _add_scaled([weight], [from_matrix(image, update)], -rate * (MUON_SHARE * rate_factor(weight)))


def _add_scaled(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], factor: Number) -> None:
    """Do targets += factor * sources. As `alpha`, a tensor would be read on the host."""
    if isinstance(factor, torch.Tensor):
        torch._foreach_add_(targets, torch._foreach_mul(sources, factor))
    else:
        torch._foreach_add_(targets, sources, alpha=factor)


def _plus_scaled(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor], factor: Number) -> Sequence[torch.Tensor]:
    """Left + factor * right, in new memory."""
    if isinstance(factor, torch.Tensor):
        return torch._foreach_add(left, torch._foreach_mul(right, factor))
    return torch._foreach_add(left, right, alpha=factor)


def _by_device(weights: Iterable[nn.Parameter]) -> dict[torch.device, list[nn.Parameter]]:
    """The weights that have a gradient.

    Raises:
        RuntimeError: A gradient is sparse.
    """
    found: dict[torch.device, list[nn.Parameter]] = {}
    for weight in weights:
        if weight.grad is None:
            continue
        if weight.grad.is_sparse:
            raise RuntimeError(f"MuSGD takes no sparse gradient, as that of {tuple(weight.shape)}; use sparse=False")
        found.setdefault(weight.device, []).append(weight)
    return found


def _number(value: Number, device: torch.device) -> Number:
    """What to compute with: a float where the host knows it, else a tensor of no dimensions on `device`."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.item() if value.device.type == "cpu" else value.reshape(()).to(device)


def _require_options(options: dict[str, Any]) -> None:
    """Refuse what cannot be meant.

    Raises:
        OptionError: Naming the option, its value and what it must be.
    """
    _require_number("lr", options["lr"], math.inf)
    _require_number("momentum", options["momentum"], 1.0)
    if isinstance(options["weight_decay"], torch.Tensor):
        raise OptionError("weight_decay must be a float; only lr and momentum may be tensors")
    _require_number("weight_decay", options["weight_decay"], math.inf)
    if not isinstance(options["batched"], bool):
        raise OptionError(f"batched={options['batched']!r} must be True or False")


def _require_number(name: str, value: object, limit: float) -> None:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise OptionError(f"{name} is a {value.dtype} tensor of {tuple(value.shape)}, must be one floating value")
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < limit:
        below = "" if limit == math.inf else f" and below {limit:g}"
        raise OptionError(f"{name}={value!r} must be a finite number of at least 0{below}")
