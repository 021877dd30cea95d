"""A network's modules, weights and buffers, looked up once and checked quickly on every call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, itemgetter, methodcaller
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

# nn.Module offers no public question "has this module hooks?", hence these names.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_REQUIRES_GRAD = attrgetter("requires_grad")
# What nn.Module keeps for itself. `forward` stands on the root while it is replayed.
_INTERNAL = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Closes the row of everything a network holds, so that a longer or shorter row differs in its last place at the latest.
_END = {"": object()}


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """What a recording has baked in.

    Attributes:
        objects: The modules, weights, buffers, and what else modules hold that is not plain. By identity: two weights
            may share one address.
        addresses: Of the weights and buffers that have one.
        wanting: Which of the buffers that may want a gradient do. Those of the weights belong to the layout.
        attributes: The modules' own plain attributes, like a dropout's `p`, by value.
        names: What those are called, module by module.
    """

    objects: list[object]
    addresses: list[int]
    wanting: list[bool]
    attributes: list[tuple[object, ...]]
    names: list[tuple[str, ...]]

    def equals(self, other: Fingerprint) -> bool:
        """Whether a recording made under `self` serves under `other`."""
        if self.addresses != other.addresses or self.wanting != other.wanting:
            return False
        if self.names != other.names or not _equal(self.attributes, other.attributes):
            return False
        return len(self.objects) == len(other.objects) and all(map(is_, self.objects, other.objects))


def _equal(left: list[tuple[object, ...]], right: list[tuple[object, ...]]) -> bool:
    try:
        return left == right
    except Exception:  # noqa: BLE001  # An array or whatever else came in a plain value's place brings an `==` of its own.
        return False


def _differentiable(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Integers, like the counter of a batch norm, cannot want a gradient."""
    return [held for held in tensors if held.dtype.is_floating_point or held.dtype.is_complex]


def has_address(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in memory as a whole: sparse ones do not, nor lazy ones and some of other classes."""
    try:
        tensor.data_ptr()
    except (RuntimeError, ValueError):
        return False
    return True


def _is_plain(value: object) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


class Wiring:
    """Where a network keeps its modules, weights and buffers, and what it kept there when last seen.

    Everything here runs in every forward, so it walks flat lists by functions written in C, and compares what it finds
    with what it found before. Only where that differs is the module tree walked again.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.walk()

    def walk(self) -> None:
        """Look everything up anew."""
        named = list(self.network.named_modules())
        self.modules = [module for _, module in named]
        attributes = [vars(module) for module in self.modules]
        self._inner = attributes[1:]
        self._named = [
            (f"{prefix}.{name}" if prefix else name, held)
            for prefix, module in named
            for name, held in module._parameters.items()
            if held is not None
        ]
        self._parameters = [held for _, held in self._named]
        self._tensors = [*self._parameters, *(held for _, _, held in self.buffers())]
        self._addressed = list(filter(has_address, self._tensors))
        self._differentiable = _differentiable(held for _, _, held in self.buffers())
        self._trainable = _differentiable({id(held): held for held in self._parameters}.values())
        stores = [store for module in self.modules for store in (module._modules, module._parameters, module._buffers)]
        self._empty = [store for store in stores if not store]
        self._filled = [*(store for store in stores if store), _END]
        # A scripted child has other mappings in their place, and a class may make a property of its training flag.
        self._values: Any = dict.values if all(isinstance(one, dict) for one in stores) else methodcaller("values")
        self._other = _readers(attributes, lambda value: not _is_plain(value))
        self._held = list(self._now_held())
        self._handles = -1
        self._hooks: list[dict[int, object]] = []
        plain = all("training" in one for one in attributes)
        self._flags: Any = (itemgetter("training"), attributes) if plain else (attrgetter("training"), self.modules)
        self._training: tuple[bool, ...] = ()
        self._wanting: tuple[bool, ...] = ()
        self._plain = _readers(attributes, _is_plain)
        self._attributes = attributes
        self._sizes = list(map(len, attributes))
        objects = [*self.modules, *self._tensors, *self._now_other()]
        names = [tuple(name for name in held if name != "forward") for held in attributes]
        self._fingerprint = Fingerprint(objects, *self._memory(), self._now_plain(), names)

    def _now_held(self) -> chain[object]:
        return chain(chain.from_iterable(map(self._values, self._filled)), self._now_other())

    def _now_other(self) -> chain[object]:
        return chain.from_iterable(chain.from_iterable(map(read, held) for read, held in self._other))

    def _now_plain(self) -> list[tuple[object, ...]]:
        return list(chain.from_iterable(map(read, held) for read, held in self._plain))

    def _memory(self) -> tuple[list[int], list[bool]]:
        return list(map(torch.Tensor.data_ptr, self._addressed)), list(map(_REQUIRES_GRAD, self._differentiable))

    def refresh(self) -> None:
        """Walk the tree again if a module, weight, buffer or attribute was added, removed or replaced since the last
        walk; a plain attribute that has another value is left to the fingerprint.

        By identity: `==` of two tensors would compare their values.
        """
        grown = any(self._empty) or list(map(len, self._attributes)) != self._sizes
        if grown or not self._holds_the_same():
            self.walk()

    def _holds_the_same(self) -> bool:
        try:
            return all(map(is_, self._now_held(), self._held))
        except KeyError:  # an attribute was removed, and another one came in its place
            return False

    def training(self) -> tuple[bool, ...]:
        """Each module's training flag; the same tuple as long as no flag changes."""
        now = tuple(map(*self._flags))
        if now != self._training:
            self._training = now
        return self._training

    def wanting(self) -> tuple[bool, ...]:
        """For each distinct weight that may want a gradient, whether it does; the same tuple as long as none changes.
        Call `refresh` before."""
        now = tuple(map(_REQUIRES_GRAD, self._trainable))
        if now != self._wanting:
            self._wanting = now
        return self._wanting

    def fingerprint(self) -> Fingerprint:
        """What a recording made now bakes in; the same object as long as nothing changes. Call `refresh` before."""
        seen = self._fingerprint
        addresses, wanting = self._memory()
        try:
            attributes = self._now_plain()
        except KeyError:  # one was removed, and another one came in its place
            self.walk()
            return self._fingerprint
        if addresses != seen.addresses or wanting != seen.wanting or not _equal(attributes, seen.attributes):
            self._fingerprint = Fingerprint(seen.objects, addresses, wanting, attributes, seen.names)
        return self._fingerprint

    def weights(self) -> list[tuple[str, nn.Parameter]]:
        """The distinct weights that want a gradient, by name. A tied weight comes once."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for name, weight in self._named:
            if weight.requires_grad:
                found.setdefault(id(weight), (name, weight))
        return list(found.values())

    def places(self) -> list[tuple[Any, str, nn.Parameter]]:
        """Each weight with the mapping and key of a module that hold it; a tied weight as often as it is held, a module
        with two names once."""
        stores = (module._parameters for module in self.modules)
        return [(store, key, held) for store in stores for key, held in store.items() if held is not None]

    def parameters(self) -> list[nn.Parameter]:
        """All weights, those without gradients too, in the order of the tree; a tied weight comes twice."""
        return self._parameters

    def buffers(self) -> list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]]:
        """Each buffer with the dictionary and key that hold it."""
        stores = (module._buffers for module in self.modules)
        return [(store, key, held) for store in stores for key, held in store.items() if held is not None]

    def tensors(self) -> list[torch.Tensor]:
        """All weights and buffers."""
        return self._tensors

    def without_address(self) -> str | None:
        """The name of a weight or buffer that no recording can read, as it lies nowhere as a whole; None if all do."""
        if len(self._addressed) == len(self._tensors):
            return None
        named = chain(self.network.named_parameters(), self.network.named_buffers())
        return next((name for name, held in named if not has_address(held)), None)

    def device(self) -> torch.device | None:
        """Where the first weight is; None for a network without weights."""
        return self._parameters[0].device if self._parameters else None

    def hooked(self) -> bool:
        """Whether a module below the root, or all modules, carry hooks. Those of the root run outside of the replay."""
        if any(getattr(torch_module, f"_global{name}") for name in _HOOKS):
            return True
        # Every registration of a hook, on whatever object, counts it up; only then the dictionaries of hooks are looked
        # up anew. A hook that is put into one of them by hand is seen too. Not seen at once is only a dictionary that
        # was filled first and put in another's place then, past the modules' own methods.
        if self._handles != RemovableHandle.next_id:
            self._handles = RemovableHandle.next_id
            self._hooks = [attributes[name] for attributes in self._inner for name in _HOOKS]
        return any(self._hooks)


def _readers(
    attributes: list[dict[str, object]], wanted: Callable[[object], bool]
) -> list[tuple[Callable[..., tuple[object, ...]], list[Any]]]:
    """For each set of names that wanted attributes of a module have, what reads them and where from.

    Modules of one class mostly have the same names, so that few readers serve all.
    """
    groups: defaultdict[tuple[str, ...], list[dict[str, object]]] = defaultdict(list)
    for index, held in enumerate(attributes):
        internal = _INTERNAL | {"forward"} if index == 0 else _INTERNAL
        names = tuple(name for name, value in held.items() if name not in internal and wanted(value))
        if names:
            groups[names].append(held)
    # `itemgetter` gives a tuple only for two names and more.
    return [(itemgetter(*names, names[0]), held) for names, held in groups.items()]
