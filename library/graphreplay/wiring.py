"""A network's modules, weights and buffers, looked up once and read quickly on every call."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules import module as torch_module

# nn.Module offers no public question "has this module hooks?", hence these names.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Wiring:
    """Where a network keeps its weights and buffers.

    The walk over the module tree is done once and again when a module was added or removed; the tensors themselves are
    read from their dictionaries on every call, since `load_state_dict(assign=True)` and `.to()` replace them.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._walk()

    def _walk(self) -> None:
        named = list(self.network.named_modules())
        self.modules = [module for _, module in named]
        self.names: list[str] = []
        self._weights: list[tuple[dict[str, nn.Parameter | None], str]] = []
        for prefix, module in named:
            for name in module._parameters:
                self.names.append(f"{prefix}.{name}" if prefix else name)
                self._weights.append((module._parameters, name))
        self._buffers = [(module._buffers, name) for module in self.modules for name in module._buffers]
        self._size = self._measure()

    def _measure(self) -> tuple[int, ...]:
        return tuple(len(m._modules) + 1000 * (len(m._parameters) + 1000 * len(m._buffers)) for m in self.modules)

    def refresh(self) -> None:
        """Walk the tree again if it changed since the last call."""
        if self._measure() != self._size:
            self._walk()

    def training(self) -> tuple[bool, ...]:
        """Each module's training flag."""
        return tuple(module.training for module in self.modules)

    def weights(self) -> list[tuple[str, nn.Parameter]]:
        """The distinct weights that want a gradient, by name. A tied weight comes once."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for name, (store, key) in zip(self.names, self._weights, strict=True):
            weight = store[key]
            if weight is not None and weight.requires_grad:
                found.setdefault(id(weight), (name, weight))
        return list(found.values())

    def parameters(self) -> list[nn.Parameter]:
        """All weights, those without gradients too, in the order of the tree."""
        return [weight for store, key in self._weights if (weight := store[key]) is not None]

    def buffers(self) -> list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]]:
        """Each buffer with the dictionary and key that hold it."""
        return [(store, key, held) for store, key in self._buffers if (held := store[key]) is not None]

    def fingerprint(self) -> tuple[tuple[int, bool], ...]:
        """Address and requires_grad of all weights and buffers: what a recording has baked in."""
        stores = (*self._weights, *self._buffers)
        return tuple((held.data_ptr(), held.requires_grad) for store, key in stores if (held := store[key]) is not None)

    def tensors(self) -> list[torch.Tensor]:
        """All weights and buffers."""
        return [*self.parameters(), *(held for _, _, held in self.buffers())]

    def device(self) -> torch.device | None:
        """Where the first weight is; None for a network without weights."""
        return next((held.device for store, key in self._weights if (held := store[key]) is not None), None)

    def hooked(self) -> bool:
        """Whether a module below the root, or all modules, carry hooks. Those of the root run outside of the replay."""
        if torch_module._has_any_global_hook():
            return True
        return any(getattr(module, name) for module in self.modules[1:] for name in _HOOKS)
