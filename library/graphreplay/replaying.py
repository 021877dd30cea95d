"""The autograd function that replays a recording's forward now and its backward later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from graphreplay.errors import ReplayError
from graphreplay.generators import random_state, set_random_state
from graphreplay.gradients import demand_of
from graphreplay.layout import Layout
from graphreplay.preservation import preserved
from graphreplay.recording import Recording
from graphreplay.wiring import Wiring


class Turn:
    """One replayed forward that awaits its backward. Lives exactly as long as the autograd node that holds it.

    While it is alive and not spent, the recordings' shared memory holds its activations, so nobody else may replay.
    """

    def __init__(
        self, recording: Recording, layout: Layout, wiring: Wiring, on_backward: Callable[[Turn, bool], None]
    ) -> None:
        self.recording = recording
        self.layout = layout
        self.wiring = wiring
        self.on_backward = on_backward
        self.random = random_state(recording.device) if recording.draws else None
        self.key = object()
        self.spent = False

    def gradients(self, incoming: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients of inputs and weights, for those of the outputs."""
        if self.spent:
            raise ReplayError(
                "backward went through a replayed forward a second time; its activations are gone. "
                "Call backward once for each forward, or switch replay off where retain_graph is needed"
            )
        self.spent = True
        if all(gradient is None for gradient in incoming):
            return [None] * len(self.recording.gradients)
        fits = demand_of(incoming) == self.recording.demand
        self.on_backward(self, fits)
        if not fits:
            return self._recompute(incoming)
        gradients = self.recording.replay_backward(incoming)
        if self.recording.has_hooked_weights():
            self._copy_for_hooks(gradients)
        return gradients

    def _copy_for_hooks(self, gradients: list[torch.Tensor | None]) -> None:
        """A weight's hook may keep the tensor, and then nobody could move it in time (TransformerEngine#2937)."""
        first = len(gradients) - len(self.recording.weights)
        for index, weight in enumerate(self.recording.weights, start=first):
            kept = gradients[index]
            if weight._backward_hooks and kept is not None:
                gradients[index] = kept.clone()

    def _recompute(self, incoming: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Run forward and backward natively, because the loss hands back gradients of another form than recorded.

        The static inputs still hold this forward's values, since nobody else replays during a turn.
        """
        passes, inputs = self.recording.passes, self.recording.inputs
        with torch.enable_grad(), preserved(self.wiring, self.recording.device):
            if self.random is not None:
                set_random_state(self.random, self.recording.device)
            torch.clear_autocast_cache()
            with self.layout.autocast.region():
                _, outputs = passes.forward(inputs)
            torch.clear_autocast_cache()
            return list(passes.backward(inputs, outputs, incoming))


class Replay(torch.autograd.Function):
    """Inputs and weights in, outputs out; the gradients come from the recorded backward."""

    @staticmethod
    def forward(ctx: Any, turn: Turn, inputs: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Replay the forward. `tensors` are the call's `inputs` tensors, then the weights that want a gradient."""
        ctx.set_materialize_grads(False)
        ctx.turn = turn
        outputs = turn.recording.replay_forward(tensors[:inputs])
        if turn.recording.plain:
            ctx.mark_non_differentiable(*(outputs[index] for index in turn.recording.plain))
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Replay the backward, or recompute natively where the recording does not fit."""
        found = iter(ctx.turn.gradients(gradients))
        of_inputs = [next(found) if wanted else None for wanted in ctx.turn.recording.wanted]
        return (None, None, *of_inputs, *found)
