"""The options of a replay, refused at once when they are wrong."""

from __future__ import annotations

from dataclasses import dataclass, fields

from graphreplay.errors import OptionError

SCOPES = ("network",)
_LATER_SCOPES = ("loss", "step")


@dataclass(frozen=True)
class ReplayOptions:
    """How a network is recorded and replayed.

    Attributes:
        scope: What is inside the graphs. Only `"network"` (its forward and backward) is there.
        layouts: The most input layouts that get a recording; those beyond it run native. At least 1. A layout that is
            only watched, since it came less often than `sightings` asks, takes no place; one that was given up does.
        sightings: Native forward-and-backward passes of a layout before it is recorded. At least 1, because the first
            one shows in which memory layout the loss hands its gradients back.
        warmup: Passes on a side stream before the capture, so that lazy set-up of cuDNN and cuBLAS is over. At least 1.
        offload: Keep what the first native pass of a further layout saves for its backward in host memory, since the
            device's holds the recordings that there are. Costs that pass a copy there and back. A network that calls
            `torch.func.grad` or the like in its forward, which torch refuses beside it, is run again without.
        strict: Raise `RetiredError` where a layout would be retired.

    Raises:
        OptionError: An option has a wrong type or value.
    """

    scope: str = "network"
    layouts: int = 8
    sightings: int = 1
    warmup: int = 3
    offload: bool = True
    strict: bool = False

    def __post_init__(self) -> None:
        if self.scope in _LATER_SCOPES:
            raise OptionError(f"scope={self.scope!r} is not recorded yet; use scope='network'")
        if self.scope not in SCOPES:
            raise OptionError(f"scope={self.scope!r} is unknown; use scope='network'")
        for name in ("offload", "strict"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}={getattr(self, name)!r} must be True or False")
        for name in ("layouts", "sightings", "warmup"):
            _require_count(name, getattr(self, name))

    @classmethod
    def known(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def from_keywords(cls, keywords: dict[str, object]) -> ReplayOptions:
        """The options named by `keywords`.

        Raises:
            OptionError: A name is unknown, or a value is wrong.
        """
        unknown = sorted(set(keywords) - set(cls.known()))
        if unknown:
            raise OptionError(f"unknown option {unknown[0]!r}; the options are {', '.join(cls.known())}")
        return cls(**keywords)  # type: ignore[arg-type]  # __post_init__ checks every value


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name}={value!r} must be a whole number of at least 1")
