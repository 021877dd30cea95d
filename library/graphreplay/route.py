"""The way of a call: `network.forward`, replaced on one object and given back, with nothing left in its copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.fx import GraphModule


def _nothing() -> None: ...


# Not `torch.compiler.disable`, which imports the compiler at once. That takes seconds, and mostly nobody compiles.
@_disable_dynamo
def _uncompiled(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return forward(*args, **kwargs)


class Route:
    """Stands in `network.__dict__["forward"]`, so that hooks of the network itself still run around it.

    A copy of the network, or one that was pickled, gets the native forward, bound to itself: an EMA of a replayed
    network must not run the replay of the original.
    """

    def __init__(self, network: nn.Module, forward: Callable[..., Any]) -> None:
        self._network = network
        self._own = vars(network).get("forward")
        self._forward: Callable[..., Any] = forward
        self.native: Callable[..., Any] = network.forward
        network.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # Compiled is a function around the network: it breaks its graph here.
            return _uncompiled(self._forward, args, kwargs)
        return self._forward(*args, **kwargs)

    def remove(self) -> None:
        """Give the network its forward back. Where somebody has wrapped this one meanwhile, lead straight to it."""
        self._forward = self.native
        if vars(self._network).get("forward") is not self:
            return
        del self._network.forward
        if self._own is not None:
            self._network.forward = self._own

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.native, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._own is not None:
            return copy.copy, (self._own,)
        if isinstance(self._network, GraphModule):
            # Its attributes are pickled before itself, which would begin anew here. When it is unpickled it makes its
            # forward out of its code, and leaves this out.
            return _nothing, ()
        return getattr, (self._network, "forward")
