"""graphreplay: a network's training forward and backward as CUDA graphs, bit for bit what native training gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphreplay.errors import OptionError, ReplayError, RetiredError
from graphreplay.labels import Label
from graphreplay.network import NetworkReplay
from graphreplay.options import ReplayOptions
from graphreplay.report import LayoutReport, Report, Retirement

if TYPE_CHECKING:
    from graphreplay.callback import ReplayCallback

__all__ = [
    "Label",
    "LayoutReport",
    "NetworkReplay",
    "OptionError",
    "ReplayCallback",
    "ReplayError",
    "ReplayOptions",
    "Report",
    "RetiredError",
    "Retirement",
    "capture_network",
]


def capture_network(network: Any, **options: Any) -> NetworkReplay:
    """Switch replay on for a network, in one line of a LightningModule's or loop's own set-up.

    Keep the result: its `report()` says what happened, its `close()` gives the memory back.

    Args:
        network: The `nn.Module` whose training forwards are to be replayed.
        **options: See `ReplayOptions`.

    Raises:
        OptionError: An option is wrong, or the network cannot be recorded at all.
    """
    return NetworkReplay(network, **options).attach()


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import, and a plain loop needs none of it.
    if name == "ReplayCallback":
        from graphreplay.callback import ReplayCallback  # noqa: PLC0415

        return ReplayCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
