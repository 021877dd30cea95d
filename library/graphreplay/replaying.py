"""The autograd function that replays a recording's forward now and its backward later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

import torch

from graphreplay.errors import ReplayError
from graphreplay.generators import random_state, set_random_state
from graphreplay.gradients import Demand, autocast_in_force
from graphreplay.layout import Layout
from graphreplay.preservation import preserved
from graphreplay.recording import Pass, Recording
from graphreplay.wiring import Wiring

_VERSION = attrgetter("_version")
_WANTS_GRADIENT = attrgetter("requires_grad")
# Torch 2.6 and later can tell; an older one is taken to keep every graph.
_keeps_graph: Callable[[], bool] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)

Gradients = list[torch.Tensor | None]


class Service(Enum):
    """How one backward through a replayed forward is served."""

    REPLAYED = "replayed"
    # Of another form than the recorded one.
    RECOMPUTED = "recomputed"
    # create_graph=True: what the backward computes is to be differentiated in its turn.
    DIFFERENTIATED = "create_graph=True asks for gradients that can be differentiated again"
    # is_grads_batched=True: many backwards in one, under vmap.
    BATCHED = "is_grads_batched=True asks for many backwards in one"
    AGAIN = "a replayed forward was gone through again"


def beyond_replay(incoming: Sequence[torch.Tensor | None]) -> Service | None:
    """How the running backward is served if no replay can serve it, by the `incoming` gradients."""
    if torch.is_grad_enabled():  # In a backward with create_graph=True alone.
        return Service.DIFFERENTIATED
    return Service.BATCHED if any(one is not None and _is_batched(one) for one in incoming) else None


def _is_batched(tensor: torch.Tensor) -> bool:
    """Whether it stands for many: is_grads_batched=True makes tensors of an older kind than `torch.func.vmap`."""
    functorch = torch._C._functorch
    return bool(functorch.is_legacy_batchedtensor(tensor) or functorch.is_functorch_wrapped_tensor(tensor))


class Turn:
    """One replayed forward that awaits its backward. Lives exactly as long as the autograd node that holds it.

    While it is alive and not spent, the recordings' shared memory holds its activations, so nobody else may replay.
    What a replay cannot serve is computed natively from the static inputs, which hold this forward's values until the
    recording's next forward.
    """

    def __init__(
        self, recording: Recording, layout: Layout, wiring: Wiring, on_backward: Callable[[Turn, Service, Demand], None]
    ) -> None:
        self.recording = recording
        self.layout = layout
        self.wiring = wiring
        self.on_backward = on_backward
        self.random = random_state(recording.device) if recording.draws else None
        self.key = object()
        self.spent = False
        self._given: list[tuple[torch.Tensor, int]] = []
        self._versions: list[int] = []
        self._inputs: list[torch.Tensor] | None = None
        self._buffers: list[torch.Tensor] = []

    def replay(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Replay the forward with the call's `tensors`. Call it without gradients."""
        wanted = self.recording.wanted
        self._given = [(one, one._version) for one, want in zip(tensors, wanted, strict=True) if want]
        self.recording.turn = self.key
        self._buffers = [held.clone() for held in self.recording.moving]
        return self.recording.replay_forward(tensors)

    def gradients(self, incoming: Sequence[torch.Tensor | None]) -> Gradients:
        """The gradients of inputs and weights, for those of the outputs.

        Raises:
            ReplayError: It is too late to compute them.
        """
        again, self.spent = self.spent, True
        if not again:
            self._prepare_for_more()
        if all(gradient is None for gradient in incoming):
            return [None] * len(self.recording.gradients)
        service = Service.AGAIN if again else beyond_replay(incoming)
        if service is not None:
            return self._through_native_graph(incoming, service)
        demand = Demand.of(incoming)
        fits = demand == self.recording.demand
        self.on_backward(self, Service.REPLAYED if fits else Service.RECOMPUTED, demand)
        if not fits:
            return self._recompute(incoming)
        gradients = self.recording.replay_backward(incoming)
        if self.recording.has_hooked_weights():
            self._copy_for_hooks(gradients)
        return gradients

    def _copy_for_hooks(self, gradients: Gradients) -> None:
        """A weight's hook may keep the tensor, and then nobody could move it in time (TransformerEngine#2937)."""
        first = len(gradients) - len(self.recording.weights)
        for index, weight in enumerate(self.recording.weights, start=first):
            kept = gradients[index]
            if weight._backward_hooks and kept is not None:
                gradients[index] = kept.clone()

    def _recompute(self, incoming: Sequence[torch.Tensor | None]) -> Gradients:
        """Run forward and backward natively, because the loss hands back gradients of another form than recorded, or
        within another autocast region."""
        inputs = self.recording.inputs
        with torch.enable_grad(), preserved(self.wiring, self.recording.device):
            passes = self.recording.passes.over(self._buffer_copies())
            outputs = self._forward(passes, inputs)
            return list(passes.backward(inputs, outputs, incoming, autocast_in_force()))

    def _buffer_copies(self, everything: bool = False) -> dict[int, torch.Tensor]:
        """Copies of buffers, put in their places inside of `preserved`: with the values that the forward has met."""
        pairs = zip(self.recording.moving, self._buffers, strict=True)
        copies = {id(held): before.clone() for held, before in pairs}
        for store, key, held in self.wiring.buffers():
            if everything and id(held) not in copies:
                copies[id(held)] = held.clone()
            if id(held) in copies:
                store[key] = copies[id(held)]
        return copies

    def _forward(self, passes: Pass, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """This turn's forward once more, inside of `preserved`: in the mode and with the random numbers of then."""
        for module, training in zip(self.wiring.modules, self.layout.training, strict=True):
            if module.training is not training:
                module.training = training
        if self.random is not None:
            set_random_state(self.random, self.recording.device)
        torch.clear_autocast_cache()
        with self.layout.autocast.region():
            _, outputs = passes.forward(inputs)
        torch.clear_autocast_cache()
        return outputs

    def _through_native_graph(self, incoming: Sequence[torch.Tensor | None], service: Service) -> Gradients:
        """Run the forward natively over the real inputs and weights, and go through that graph as the running backward
        asks for: so that its gradients can be differentiated again, or not."""
        if service is Service.AGAIN:
            self._require_unchanged()
        self.on_backward(self, service, self.recording.demand)
        outputs, targets = self._native_graph()
        pairs = zip(outputs, incoming, strict=True)
        roots, given = zip(*((output, one) for output, one in pairs if one is not None), strict=True)
        create = torch.is_grad_enabled()
        return list(torch.autograd.grad(roots, targets, given, allow_unused=True, create_graph=create))

    def _prepare_for_more(self) -> None:
        """Keep what a further backward needs, if one may come."""
        if _keeps_graph():
            self._versions = self._weight_versions()
        else:
            self._given = []

    def _weight_versions(self) -> list[int]:
        return list(map(_VERSION, self.wiring.parameters()))

    def _require_unchanged(self) -> None:
        """Refuse a further backward that would meet other values than the first.

        Raises:
            ReplayError: It would.
        """
        problem = None
        if not self._versions:
            problem = "the first one did not keep the graph (retain_graph=True)"
        elif self._inputs is None and self.recording.turn is not self.key:
            problem = "its activations are gone, since the next forward was replayed"
        elif self._versions != self._weight_versions():
            problem = "the weights have changed since"
        if problem is not None:
            raise ReplayError(
                f"backward went through a replayed forward a second time, but {problem}. Call backward once for each "
                "forward, or detach() the replay before forwards whose graphs are kept that long"
            )

    def _native_graph(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs of a native forward, and what its backward is to compute gradients of.

        Raises:
            ReplayError: An input or the network was changed since the replayed forward.
        """
        recording = self.recording
        if any(tensor._version != version for tensor, version in self._given):
            raise ReplayError("an input of a replayed forward was written in place before its backward")
        self.wiring.refresh()
        if not recording.serves(self.wiring.fingerprint()):
            raise ReplayError(
                "weights or attributes of the network were replaced between a replayed forward and its backward"
            )
        if not all(map(_WANTS_GRADIENT, recording.weights)):
            raise ReplayError("weights of the network were frozen between a replayed forward and its backward")
        if self._inputs is None:
            given = iter(self._given)
            self._inputs = [
                next(given)[0] if want else form.empty().copy_(static)
                for static, form, want in zip(recording.inputs, self.layout.tensors, recording.wanted, strict=True)
            ]
        with torch.enable_grad(), preserved(self.wiring, recording.device):
            # Views, since hooks of the tensors themselves are called by the backward that leads here.
            inputs = [_view(one) if want else one for one, want in zip(self._inputs, recording.wanted, strict=True)]
            weights = list(map(_view, recording.weights))
            # Over copies of all, since the graph outlives the block, whose end writes to the buffers.
            passes = recording.passes.over(self._buffer_copies(everything=True), weights)
            outputs = self._forward(passes, inputs)
        return outputs, [one for one, want in zip(inputs, recording.wanted, strict=True) if want] + weights


def _view(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view_as(tensor)


class Replay(torch.autograd.Function):
    """Inputs and weights in, outputs out; the gradients come from the recorded backward."""

    @staticmethod
    def forward(ctx: Any, turn: Turn, inputs: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Replay the forward. `tensors` are the call's `inputs` tensors, then the weights that want a gradient."""
        ctx.set_materialize_grads(False)
        ctx.turn = turn
        outputs = turn.replay(tensors[:inputs])
        if turn.recording.plain:
            ctx.mark_non_differentiable(*(outputs[index] for index in turn.recording.plain))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Replay the backward, or compute natively where the recording does not fit.

        Not `once_differentiable`, behind which the graph of create_graph=True ends, at worst in silence.
        """
        found = iter(ctx.turn.gradients(gradients))
        of_inputs = [next(found) if wanted else None for wanted in ctx.turn.recording.wanted]
        return (None, None, *of_inputs, *found)
