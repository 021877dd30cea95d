"""What graphreplay raises."""

from __future__ import annotations

from graphreplay.labels import Label


class ReplayError(RuntimeError):
    """A replayed forward was used in a way that only native autograd can serve."""


class OptionError(ValueError):
    """An option is wrong. The message names the option, its value, and the way out."""


class RetiredError(ReplayError):
    """With `strict=True`: a layout was retired where it would otherwise have gone on native."""

    def __init__(self, layout: str, label: Label, reason: str) -> None:
        super().__init__(f"strict replay: {layout} retired as {label.value}: {reason}")
        self.layout = layout
        self.label = label
        self.reason = reason


class UnrecordableError(Exception):
    """Inside the package: what was asked for cannot be recorded, for the reason of `label`."""

    def __init__(self, label: Label, detail: str = "") -> None:
        super().__init__(f"{label.reason}: {detail}" if detail else label.reason)
        self.label = label
