"""One layout's captured forward and backward, and how it is made."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from graphreplay.bits import same_bits
from graphreplay.capture import Graph, Recorder, quiet_collector
from graphreplay.errors import UnrecordableError
from graphreplay.gradients import Demand, GradientMemory, StaticGradient
from graphreplay.labels import Label
from graphreplay.layout import AutocastForm, Layout, TensorForm
from graphreplay.preservation import preserved
from graphreplay.structure import Node, flatten, given_in, known, rebuild
from graphreplay.wiring import Fingerprint, Wiring

_NORMS = ("torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")
_HOOKS = attrgetter("_backward_hooks")
_LATE_HOOKS = attrgetter("_post_accumulate_grad_hooks")


class Pass:
    """The network's forward and backward, over detached aliases of its weights.

    Aliases share the weights' memory but not their autograd nodes. A loss that is still alive holds AccumulateGrad
    nodes of the caller's stream, with which the capture of a backward fails (pytorch#180090).
    """

    def __init__(self, wiring: Wiring, native: Callable[..., Any], layout: Layout) -> None:
        self._native = native
        self._layout = layout
        self._weights = [weight for _, weight in wiring.weights()]
        self._aliases = [weight.detach().requires_grad_() for weight in self._weights]
        self._tensors = wiring.tensors()
        self._copies: dict[int, torch.Tensor] = {}
        wanting = set(map(id, self._weights))
        self._places = [place for place in wiring.places() if id(place[2]) in wanting]

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[Node, list[torch.Tensor]]:
        """Call the network; its outputs, taken apart. Inputs, weights and buffers among them are named by their place
        in `(*inputs, *Wiring.tensors())`: they have a gradient of their own.

        Raises:
            UnrecordableError: The forward replaced a weight.
        """
        args, kwargs = rebuild(self._layout.inputs, inputs)
        outputs: list[torch.Tensor] = []
        with self._aliased():
            node = flatten(self._native(*args, **kwargs), outputs, known(self._given(inputs)))
        return node, outputs

    def _stands(self) -> dict[int, torch.Tensor]:
        """What stands for each weight that wants a gradient, by its id."""
        return dict(zip(map(id, self._weights), self._aliases, strict=True))

    def _given(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What stands for the inputs, weights and buffers."""
        stands = self._stands() | self._copies
        return [*inputs, *(stands.get(id(tensor), tensor) for tensor in self._tensors)]

    def over(self, copies: dict[int, torch.Tensor], weights: Sequence[torch.Tensor] | None = None) -> Pass:
        """The same pass while `copies` stand in the network for the buffers of those ids; with `weights`, in the order
        of `Wiring.weights`, in the places of the aliases."""
        other = copy.copy(self)
        other._copies = copies
        if weights is not None:
            other._aliases = list(weights)
        return other

    @contextmanager
    def _aliased(self) -> Iterator[None]:
        """Put the aliases in the places of the weights.

        `torch.func.functional_call` goes by names: where a module has two, it takes an alias for the weight that it has
        to put back at the end.
        """
        stands = self._stands()
        for store, key, weight in self._places:
            store[key] = stands[id(weight)]
        try:
            yield
            replaced = [
                key for store, key, weight in self._places if key not in store or store[key] is not stands[id(weight)]
            ]
        finally:
            for store, key, weight in self._places:
                store[key] = weight
        if replaced:
            raise UnrecordableError(Label.STATE, f"weight {replaced[0]} is replaced in the forward")

    def require_known_leaves(self, node: Node, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Refuse outputs whose gradients a replay would not bring where they belong, or not in native's order.

        Raises:
            UnrecordableError: A gradient goes on to something that is neither a weight nor an input: a weight in a list
                or a closure, or a tensor that was computed before the forward. Or the forward returns an input or a
                weight and uses it in several places as well: natively all its gradients are summed one after the
                other, and those of the network would come to it as one sum.
        """
        uses, leaves = _uses(outputs)
        strange = leaves.keys() - set(map(id, self.targets(inputs)))
        if strange:
            shape = "x".join(map(str, leaves[strange.pop()].shape))
            raise UnrecordableError(
                Label.CAPTURE,
                f"a gradient goes to a tensor ({shape}) that is neither a weight of the network's modules nor an "
                "input; make it an nn.Parameter of a module inside, or pass it as an argument",
            )
        given = self._given(inputs)
        if any(uses[id(given[index])] > 1 for index in given_in(node)):
            raise UnrecordableError(
                Label.STRUCTURE, "an output is an input or a weight that the forward also uses in several places"
            )

    def require_unmoved(self) -> None:
        """Refuse a forward that has given a weight other memory, as `weight.data = ...` does.

        Raises:
            UnrecordableError: One has.
        """
        pairs = zip(self._weights, self._aliases, strict=True)
        if any(weight.data_ptr() != alias.data_ptr() for weight, alias in pairs):
            raise UnrecordableError(Label.STATE, "a weight is given other memory in the forward")

    def targets(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the backward computes gradients of: the inputs that want one, then the weights."""
        return [tensor for tensor in inputs if tensor.requires_grad] + self._aliases

    def backward(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        autocast: AutocastForm | None,
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of `targets`; None for what the given outputs do not depend on.

        `autocast` is what the caller's own backward runs under: none in torch's own guide and in Lightning's automatic
        optimization, that of the forward in its manual one.
        """
        used = [(output, gradient) for output, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
        roots, given = zip(*used, strict=True)
        with torch.autocast("cuda", enabled=False) if autocast is None else autocast.region():
            return torch.autograd.grad(roots, self.targets(inputs), given, allow_unused=True)


@dataclass
class Recording:
    """One layout's graphs with the memory they read and write.

    Must stay constant between replays: everything in `fingerprint`, and everything in the layout. Owned by the
    recording and overwritten by its next replay: `inputs`, `outputs`, `incoming`, `gradients`. Outputs are handed out
    as copies; gradients are handed out as they are, except where `copied` says that two share memory, and
    `reclaim` moves the adopted ones away before the next replay.
    Torn down with the other recordings of its network, by the `Recorder`, which also holds the graphs.

    Attributes:
        device: Where it runs.
        node: What remains of the outputs without their tensors.
        inputs: What the forward reads.
        outputs: What the forward writes.
        forms: The forms of the outputs.
        plain: Which outputs want no gradient.
        incoming: The gradients of the outputs, which the backward reads; None for an output that gets none.
        gradients: What the backward writes: for the inputs that want a gradient, then for the weights; None for what
            the outputs with a gradient do not depend on.
        copied: Which gradients are handed out as copies.
        passes: The network, to run it natively where the recorded backward does not serve.
        graphs: Forward and backward.
        weights: The weights that want a gradient.
        tensors: All weights and buffers, which `node` may name.
        memory: The buffers of `gradients` that are not copied.
        fingerprint: What of the network is baked in.
        demand: What its backward was recorded for.
        draws: Whether the forward draws random numbers.
        moving: The buffers that the forward writes and may read.
    """

    device: torch.device
    node: Node
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    forms: list[TensorForm]
    plain: list[int]
    incoming: list[StaticGradient | None]
    gradients: tuple[torch.Tensor | None, ...]
    copied: frozenset[int]
    passes: Pass
    graphs: tuple[Graph, Graph]
    weights: list[nn.Parameter]
    tensors: list[torch.Tensor]
    memory: GradientMemory
    fingerprint: Fingerprint
    demand: Demand
    draws: bool
    moving: list[torch.Tensor]

    def __post_init__(self) -> None:
        self.wanted = [tensor.requires_grad for tensor in self.inputs]
        self._dense = [form.is_dense() for form in self.forms]
        given = self.gradients[len(self.gradients) - len(self.weights) :]
        self._unused = [weight for weight, gradient in zip(self.weights, given, strict=True) if gradient is None]
        # Of the turn whose values `inputs` hold.
        self.turn: object = None
        # Whether a backward was replayed.
        self.served = False
        self._handles = -1
        self._hooked = False
        self._hooked_in_vain = False

    def serves(self, now: Fingerprint) -> bool:
        """Whether the network is what the recording has baked in."""
        if self.fingerprint is not now:
            if not self.fingerprint.equals(now):
                return False
            self.fingerprint = now
        return True

    def has_hooked_weights(self) -> bool:
        """Whether a weight has hooks for its gradient."""
        self._look_for_hooks()
        return self._hooked

    def has_hooks_in_vain(self) -> bool:
        """Whether a weight that gets no gradient has hooks for it. Autograd would call them all the same, with None,
        since to it every weight takes part in a replay; natively such a weight does not."""
        self._look_for_hooks()
        return self._hooked_in_vain

    def _look_for_hooks(self) -> None:
        """Look again where any hook was registered anywhere since, or one may have been removed."""
        if self._handles != RemovableHandle.next_id or self._hooked_in_vain:
            self._handles = RemovableHandle.next_id
            self._hooked = any(map(_HOOKS, self.weights))
            self._hooked_in_vain = any(_HOOKS(weight) or _LATE_HOOKS(weight) for weight in self._unused)

    def replay_forward(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy the inputs in, replay, and copy the outputs out. Call it without gradients."""
        _copy(self.inputs, inputs)
        self.graphs[0].replay()
        parts = zip(self.outputs, self.forms, self._dense, strict=True)
        outputs = [torch.empty_like(static) if dense else form.empty() for static, form, dense in parts]
        _copy(outputs, self.outputs)
        return outputs

    def replay_backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Copy the gradients of the outputs in, replay, and hand out the gradients of inputs and weights."""
        slots = [
            static.slot(gradient)
            for static, gradient in zip(self.incoming, gradients, strict=True)
            if static is not None and gradient is not None
        ]
        _copy([target for target, _ in slots], [source for _, source in slots])
        self.graphs[1].replay()
        # `data` is `detach` without the way through the dispatcher, at some hundred weights.
        found = [gradient if gradient is None else gradient.data for gradient in self.gradients]
        for index in self.copied:
            found[index] = self.gradients[index].clone()  # type: ignore[union-attr]  # Only tensors are copied.
        return found


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """By one kernel for all where they allow it."""
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    elif targets:
        torch._foreach_copy_(targets, sources)


def record(
    wiring: Wiring,
    native: Callable[..., Any],
    recorder: Recorder,
    layout: Layout,
    *,
    demand: Demand,
    inputs: Sequence[torch.Tensor],
    warmup: int,
) -> Recording:
    """Capture the network for `layout`. The network, the generators and `inputs` are afterwards as they were.

    Args:
        wiring: The network.
        native: Its own forward.
        recorder: Stream and pool.
        layout: The call's layout.
        demand: What the backward is recorded for.
        inputs: The call's tensors; their values are used for the warm-up.
        warmup: How many passes to run before the capture.

    Raises:
        UnrecordableError: The forward does something that a replay would not do again.
        Exception: Whatever the network raises while it is captured.
    """
    with recorder.on_device(), quiet_collector(), preserved(wiring, recorder.device) as before:
        passes = Pass(wiring, native, layout)
        static = [_static_input(tensor, form) for tensor, form in zip(inputs, layout.tensors, strict=True)]
        versions = [tensor._version for tensor in static]
        addresses = [tensor.data_ptr() for tensor in static]
        torch.clear_autocast_cache()
        try:
            # Before the warm-up too: what native passes have left in the cache of another stream is of no use to it.
            recorder.settle()
            with recorder.on_stream():
                incoming = [None if form is None else StaticGradient(form) for form in demand.forms]
                with recorder.in_pool():
                    _warm_up(passes, static, incoming, demand.autocast, warmup)
            draws = before.draws_on_device()
            moving = [held for held in before.moved_buffers() if id(held) not in _never_read(wiring)]
            recorder.settle()
            with recorder.on_stream():
                captured = _capture(passes, recorder, static, incoming, demand.autocast)
        finally:
            torch.clear_autocast_cache()
        before.require_unchanged()
        passes.require_unmoved()
        if versions != [tensor._version for tensor in static] or addresses != [tensor.data_ptr() for tensor in static]:
            raise UnrecordableError(Label.INPUT)
        # Nobody counts what is written through `input.data`.
        if not all(map(same_bits, static, inputs)):
            raise UnrecordableError(Label.INPUT)
        return _recording(wiring, recorder, passes, static, incoming, captured, demand, draws=draws, moving=moving)


def _static_input(tensor: torch.Tensor, form: TensorForm) -> torch.Tensor:
    return form.empty().copy_(tensor.detach()).requires_grad_(form.requires_grad)


def _never_read(wiring: Wiring) -> set[int]:
    """The ids of the buffers that torch's own norms write in training mode, where they read none."""
    norms = (one for one in wiring.modules if type(one).__module__ in _NORMS)
    return {id(held) for norm in norms for held in norm._buffers.values()}


def _warm_up(
    passes: Pass,
    inputs: Sequence[torch.Tensor],
    incoming: Sequence[StaticGradient | None],
    autocast: AutocastForm | None,
    count: int,
) -> None:
    """Run the passes, each forward and backward.

    Raises:
        UnrecordableError: A replay would not bring the gradients where they belong.
    """
    for turn in range(count):
        node, outputs = passes.forward(inputs)
        if turn == 0:
            passes.require_known_leaves(node, inputs, outputs)
        passes.backward(inputs, outputs, _tensors(incoming), autocast)
        del outputs
        torch.clear_autocast_cache()


def _uses(outputs: Sequence[torch.Tensor]) -> tuple[Counter[int], dict[int, torch.Tensor]]:
    """How many gradients the backward from the outputs gives to each leaf, by the leaf's id, and the leaves."""
    leaves = {id(output): output for output in outputs if output.requires_grad and output.grad_fn is None}
    uses: Counter[int] = Counter()
    left = [output.grad_fn for output in outputs]
    seen = {None}
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            following = [one for one, _ in node.next_functions]
            # Only the node that accumulates a leaf's gradient has one.
            reached = [one.variable for one in following if hasattr(one, "variable")]
            uses.update(map(id, reached))
            leaves |= {id(leaf): leaf for leaf in reached}
            left.extend(following)
    return uses, leaves


def _tensors(incoming: Sequence[StaticGradient | None]) -> list[torch.Tensor | None]:
    return [None if static is None else static.tensor for static in incoming]


class _Captured(NamedTuple):
    """What the captures left: the graphs, and the tensors in the memory they write."""

    graphs: tuple[Graph, Graph]
    node: Node
    outputs: list[torch.Tensor]
    plain: list[int]
    gradients: tuple[torch.Tensor | None, ...]


def _capture(
    passes: Pass,
    recorder: Recorder,
    inputs: list[torch.Tensor],
    incoming: list[StaticGradient | None],
    autocast: AutocastForm | None,
) -> _Captured:
    """Capture forward and backward. The autograd graph between them is dropped, so that later captures in the pool
    reuse the memory of its activations; that is safe because only one forward at a time awaits its backward."""
    outputs: list[torch.Tensor] = []

    def run_forward() -> tuple[Node, list[torch.Tensor]]:
        node, outputs[:] = passes.forward(inputs)
        return node, outputs

    def run_backward() -> tuple[torch.Tensor | None, ...]:
        return passes.backward(inputs, outputs, _tensors(incoming), autocast)

    forward, (node, _) = recorder.capture(run_forward)
    torch.clear_autocast_cache()
    kept = [output.detach() for output in outputs]
    plain = [index for index, output in enumerate(outputs) if not output.requires_grad]
    backward, gradients = recorder.capture(run_backward)
    return _Captured((forward, backward), node, kept, plain, gradients)


def _recording(
    wiring: Wiring,
    recorder: Recorder,
    passes: Pass,
    inputs: list[torch.Tensor],
    incoming: list[StaticGradient | None],
    captured: _Captured,
    demand: Demand,
    *,
    draws: bool,
    moving: list[torch.Tensor],
) -> Recording:
    """Put it together. Call it when the autograd graph of the capture is gone: the uses of each buffer are counted."""
    forms = [TensorForm.of(output) for output in captured.outputs]
    for form in forms:
        form.require_writable()
    copied = _copied(captured.gradients, sum(tensor.requires_grad for tensor in inputs), incoming)
    lent = [one for index, one in enumerate(captured.gradients) if one is not None and index not in copied]
    return Recording(
        device=recorder.device,
        node=captured.node,
        inputs=inputs,
        outputs=captured.outputs,
        forms=forms,
        plain=captured.plain,
        incoming=incoming,
        gradients=captured.gradients,
        copied=copied,
        passes=passes,
        graphs=captured.graphs,
        weights=[weight for _, weight in wiring.weights()],
        tensors=wiring.tensors(),
        memory=GradientMemory(lent),
        fingerprint=wiring.fingerprint(),
        demand=demand,
        draws=draws,
        moving=moving,
    )


def _copied(
    gradients: Sequence[torch.Tensor | None], inputs: int, incoming: Sequence[StaticGradient | None]
) -> frozenset[int]:
    """Which gradients must be handed out as copies.

    Those whose memory serves twice: two weights may receive one tensor (a + b), or the incoming gradient itself;
    natively autograd copies it when it becomes `.grad`. And those of the inputs, which go on into graphs of unknown
    life.
    """
    uses = Counter(_address(tensor) for tensor in gradients if tensor is not None)
    uses.update(_address(static.tensor) for static in incoming if static is not None)
    return frozenset(
        index
        for index, tensor in enumerate(gradients)
        if tensor is not None and (index < inputs or uses[_address(tensor)] > 1)
    )


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
