"""One layout's place in a network's replay: what was seen of it, its recording, its counts."""

from __future__ import annotations

from collections import Counter
from functools import partial

import torch

from graphreplay.gradients import Demand
from graphreplay.labels import Label
from graphreplay.layout import Layout, TensorForm
from graphreplay.recording import Recording
from graphreplay.report import LayoutReport


class Entry:
    """One layout's state. Either retired, or with a recording, or still being watched."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.recording: Recording | None = None
        self.retired: Label | None = None
        self.recorded = 0
        self.replayed = 0
        self.recomputed = 0
        self.native: Counter[str] = Counter()
        self.sightings = 0
        self.sighting: Sighting | None = None

    @property
    def demand(self) -> Demand:
        """Which outputs received a gradient in the last native pass, and in which form."""
        return () if self.sighting is None else tuple(self.sighting.forms)

    @property
    def several_backwards(self) -> bool:
        """Whether the last native pass was gone through backward more than once."""
        return self.sighting is not None and len(self.sighting.tasks) > 1

    def report(self) -> LayoutReport:
        """The counts so far."""
        return LayoutReport(str(self.layout), self.recorded, self.replayed, self.recomputed, dict(self.native))


class Sighting:
    """One native pass, watched by hooks on its outputs, which leave the autograd graph as it is."""

    def __init__(self, entry: Entry, outputs: list[torch.Tensor]) -> None:
        self.forms: list[TensorForm | None] = [None] * len(outputs)
        self.tasks: set[int] = set()
        self._entry = entry
        for index, output in enumerate(outputs):
            if output.requires_grad:
                output.register_hook(partial(self._note, index))

    def _note(self, index: int, gradient: torch.Tensor) -> None:
        if not self.tasks:
            self._entry.sightings += 1
            self._entry.sighting = self
        # The number of the running backward; torch's own register_multi_grad_hook tells backwards apart by it.
        self.tasks.add(torch._C._current_graph_task_id())
        self.forms[index] = TensorForm.of(gradient)
