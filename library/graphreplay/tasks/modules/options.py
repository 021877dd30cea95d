"""The options of the four LightningModules, refused at once when they are wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from graphreplay.errors import OptionError
from graphreplay.options import ReplayOptions

# Each optimizer with the learning rate it gets where none is named.
RATES: Mapping[str, float] = {"musgd": 0.02, "sgd": 0.02, "adamw": 0.002}


@dataclass(frozen=True)
class FitOptions:
    """How a task is trained.

    Attributes:
        width: Channels of the network after its stem, an even number.
        optimizer: `"musgd"`, `"sgd"` (with Nesterov momentum) or `"adamw"`.
        lr: The learning rate after warm-up; None for the optimizer's own in `RATES`.
        weight_decay: Of weights; biases and norms have none.
        warmup_steps: Optimizer steps over which the rate rises, in a line.
        ema_decay: What the average of weights keeps of itself in a step, once it has seen many; from 0 to below 1.
        capture_network: Replay the network.
        capture_segment_heads: Replay the mask heads alone. Only segmentation has them.
        replay: `ReplayOptions` by name, where something is captured.

    Raises:
        OptionError: An option has a wrong type or value, or does not go with another.
    """

    width: int = 8
    optimizer: str = "musgd"
    lr: float | None = None
    weight_decay: float = 5e-4
    warmup_steps: int = 20
    ema_decay: float = 0.99
    capture_network: bool = False
    capture_segment_heads: bool = False
    replay: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> FitOptions:
        """The options named by `keywords`.

        Raises:
            OptionError: A name is unknown, or a value is wrong.
        """
        known = [one.name for one in fields(cls)]
        unknown = sorted(set(keywords) - set(known))
        if unknown:
            raise OptionError(f"unknown option {unknown[0]!r}; the options are {', '.join(known)}")
        return cls(**keywords)

    def __post_init__(self) -> None:
        if self.optimizer not in RATES:
            raise OptionError(f"optimizer={self.optimizer!r} is unknown; use one of {', '.join(RATES)}")
        _require_whole("width", self.width, 2)
        _require_whole("warmup_steps", self.warmup_steps, 0)
        if self.width % 2:
            raise OptionError(f"width={self.width} must be even: blocks split their channels in halves")
        if self.lr is not None:
            _require_number("lr", self.lr, math.inf)
        _require_number("weight_decay", self.weight_decay, math.inf)
        _require_number("ema_decay", self.ema_decay, 1.0)
        self._require_capture()

    def _require_capture(self) -> None:
        for name in ("capture_network", "capture_segment_heads"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.capture_network and self.capture_segment_heads:
            raise OptionError("capture_network=True replays the mask heads too; leave capture_segment_heads=False")
        if not isinstance(self.replay, Mapping):
            raise OptionError(f"replay={self.replay!r} must be a dict of ReplayOptions")
        if self.replay and not (self.capture_network or self.capture_segment_heads):
            raise OptionError(f"replay={dict(self.replay)!r} has no effect without capture_network=True")
        ReplayOptions.from_keywords(dict(self.replay))

    @property
    def rate(self) -> float:
        """The learning rate after warm-up."""
        return RATES[self.optimizer] if self.lr is None else self.lr

    @property
    def captured(self) -> str | None:
        """The attribute path of what is replayed."""
        if self.capture_network:
            return "network"
        return "network.mask_heads" if self.capture_segment_heads else None


def _require_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}={value!r} must be a whole number of at least {least}")


def _require_number(name: str, value: object, limit: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < limit:
        below = "" if limit == math.inf else f" and below {limit:g}"
        raise OptionError(f"{name}={value!r} must be a finite number of at least 0{below}")
