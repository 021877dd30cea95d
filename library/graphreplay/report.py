"""What happened to each layout: how often it was recorded, replayed and run native, and why it was given up."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from graphreplay.labels import Label


@dataclass(frozen=True)
class Retirement:
    """Why replay was given up for one layout, or for the whole network (`layout` is then `"*"`)."""

    layout: str
    label: Label
    reason: str


@dataclass(frozen=True)
class LayoutReport:
    """One layout's counts, in forwards.

    Attributes:
        layout: Shapes, dtypes and autocast settings, for reading.
        recorded: Recordings made; more than one when weights moved to new addresses.
        replayed: Forwards replayed, those with `recomputed` backwards included.
        recomputed: Backwards run natively behind a replayed forward: they came in another form or autocast region
            than recorded, again, or with create_graph=True.
        native: Forwards run native, by cause: `observed`, `no-gradients` (no output required one), `overlapping`
            (another forward awaited its backward), `gradients-held` (somebody kept gradients in memory that a replay
            would overwrite), `capturing` (the caller captures a graph of its own), `weights-cached` (in
            `parametrize.cached()`), `unused-hooked` (a weight that gets no gradient has hooks for it, which a replay
            would call), or a retirement's label.
    """

    layout: str
    recorded: int
    replayed: int
    recomputed: int
    native: Mapping[str, int]


@dataclass(frozen=True)
class Report:
    """A network's replay so far. `write()` keeps it as JSON.

    Attributes:
        layouts: In the order of their first sighting. Of those that were never recorded, four times the cap at most.
        retirements: In the order in which they happened.
        native: Forwards that belong to no layout, by cause: `evaluation`, `no-gradients` (everything is frozen),
            `observed` (of layouts that came too seldom to be listed), or a retirement's label.
    """

    layouts: tuple[LayoutReport, ...]
    retirements: tuple[Retirement, ...]
    native: Mapping[str, int] = field(default_factory=dict)

    @property
    def recorded(self) -> int:
        """Recordings made, over all layouts."""
        return sum(layout.recorded for layout in self.layouts)

    @property
    def replayed(self) -> int:
        """Forwards replayed, over all layouts."""
        return sum(layout.replayed for layout in self.layouts)

    @property
    def native_by_cause(self) -> dict[str, int]:
        """Forwards run native, over all layouts and outside of them."""
        total = Counter(self.native)
        for layout in self.layouts:
            total.update(layout.native)
        return dict(total)

    def as_dict(self) -> dict[str, object]:
        """The report in terms of JSON."""
        return {
            "layouts": [asdict(layout) | {"native": dict(layout.native)} for layout in self.layouts],
            "retirements": [asdict(one) | {"label": one.label.value} for one in self.retirements],
            "native": dict(self.native),
        }

    def write(self, path: str | Path) -> None:
        """Write `as_dict()` as JSON, all of it or, where that fails, nothing: what `path` held before stays then.

        Raises:
            OSError: The folder of `path` is missing or cannot be written to.
        """
        path = Path(path)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def __str__(self) -> str:
        rows = [("layout", "recorded", "replayed", "recomputed", "native")]
        rows += [
            (one.layout, str(one.recorded), str(one.replayed), str(one.recomputed), _causes(one.native))
            for one in self.layouts
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [f"outside of layouts: {_causes(self.native)}"] if self.native else []
        return "\n".join(lines + [f"retired {one.layout}: {one.label.value}: {one.reason}" for one in self.retirements])


def _causes(native: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in native.items()) or "0"
