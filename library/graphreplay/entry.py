"""One layout's place in a network's replay: what was seen of it, its recording, its counts."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch

from graphreplay.gradients import Demand, autocast_in_force
from graphreplay.labels import Label
from graphreplay.layout import AutocastForm, Layout, TensorForm
from graphreplay.recording import Recording
from graphreplay.replaying import beyond_replay
from graphreplay.report import LayoutReport

# Each costs a recording.
_LESSONS = 2


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
        self._learned: Demand | None = None
        self._lessons = 0

    @property
    def demand(self) -> Demand:
        """What the loss's backward asks for: in the last native pass, as far as that shows it."""
        if self._learned is not None:
            return self._learned
        return Demand((), None) if self.sighting is None else self.sighting.demand()

    def learn(self, demand: Demand) -> bool:
        """Take what a first replay's backward was given in place of what the native pass showed. That cannot tell the
        loss's gradient of an output from the one that another output passes on to it.

        Returns:
            Whether a new recording is made of it. A second one is, for where the first replay was the odd one.
        """
        if self._lessons == _LESSONS:
            return False
        self._lessons += 1
        self._learned, self.recording = demand, None
        return True

    @property
    def several_backwards(self) -> bool:
        """Whether the last native pass was gone through backward more than once."""
        return self.sighting is not None and len(self.sighting.tasks) > 1

    @property
    def beyond_replay(self) -> str:
        """What the backward of the last native pass asked for that no replay gives; empty for none."""
        return "" if self.sighting is None else self.sighting.beyond_replay

    def report(self) -> LayoutReport:
        """The counts so far."""
        return LayoutReport(str(self.layout), self.recorded, self.replayed, self.recomputed, dict(self.native))


class Backwards:
    """Tells forwards apart that share one backward: a weight's gradients from both are summed in one go natively, and a
    replay brings its own sum already finished, so that the order of the additions differs."""

    def __init__(self, on_shared: Callable[[], None]) -> None:
        self._on_shared = on_shared
        self._task = -1
        self._forward: object = None
        self._watching: weakref.WeakSet[Sighting] = weakref.WeakSet()

    def watch(self, sighting: Sighting) -> None:
        """Remember to end the watch of a forward."""
        self._watching.add(sighting)

    def forget(self) -> None:
        """End the watch of all forwards whose backward is still to come."""
        for sighting in list(self._watching):
            sighting.end()
        self._watching.clear()

    def note(self, forward: object) -> int:
        """Take down that the running backward has reached `forward`. Returns the backward's number."""
        # torch's own register_multi_grad_hook tells backwards apart by it.
        task = torch._C._current_graph_task_id()
        if task == self._task and forward is not self._forward:
            self._on_shared()
        self._task, self._forward = task, forward
        return task


class Sighting:
    """One native pass, watched by hooks on its outputs, which leave the autograd graph as it is."""

    def __init__(self, entry: Entry | None, outputs: list[torch.Tensor], backwards: Backwards, begin: int = 0) -> None:
        """`begin` numbers the first autograd node that the forward may have made: what other nodes gave only passes
        through it, and has a life and gradients beyond it."""
        self.forms: list[TensorForm | None] = [None] * len(outputs)
        self.tasks: set[int] = set()
        self.beyond_replay = ""
        self._autocast: AutocastForm | None = None
        self._key = object()
        self._entry = entry
        self._backwards = backwards
        self._handles = [
            output.register_hook(partial(self._note, index))
            for index, output in enumerate(outputs)
            if output.grad_fn is not None and output.grad_fn._sequence_nr() >= begin
        ]
        backwards.watch(self)

    def demand(self) -> Demand:
        """What its backward asked for."""
        return Demand(tuple(self.forms), self._autocast)

    def end(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def _note(self, index: int, gradient: torch.Tensor) -> None:
        if not self.tasks and self._entry is not None:
            self._entry.sightings += 1
            self._entry.sighting = self
        self.tasks.add(self._backwards.note(self._key))
        if service := beyond_replay([gradient]):
            self.beyond_replay = service.value
            return
        self._autocast = autocast_in_force()
        self.forms[index] = TensorForm.of(gradient)
