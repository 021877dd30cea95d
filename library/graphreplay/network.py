"""The core: one network whose training forwards are recorded and replayed, in any loop."""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from graphreplay.capability import has_bfloat16
from graphreplay.capture import Recorder
from graphreplay.entry import Backwards, Entry, Sighting
from graphreplay.errors import OptionError, UnrecordableError
from graphreplay.gradients import Demand, GradientMemory, reclaim
from graphreplay.labels import Label
from graphreplay.layout import Layout
from graphreplay.ledger import Ledger, Moves
from graphreplay.offload import is_refusal, offloaded
from graphreplay.options import ReplayOptions
from graphreplay.preservation import Preservation
from graphreplay.recording import Recording, record
from graphreplay.replaying import Replay, Service, Turn
from graphreplay.report import Report
from graphreplay.route import Route
from graphreplay.structure import flatten, known, rebuild
from graphreplay.wiring import Wiring

# Recomputing costs a forward more than native. A few odd batches are worth it, a habit is not.
_RECOMPUTES = 8
# The cause of a native forward behind which no backward can come.
_NO_GRADIENTS = "no-gradients"


class NetworkReplay:
    """Replays one network's training forward and backward.

    While attached, `network(...)` goes through it. It is not a module and never becomes one: the network keeps its
    class, its children, its state_dict. Forwards in evaluation or without gradients run native. What must not change
    while a forward awaits its backward is what autograd forbids natively too: the weights.

    Args:
        network: The module whose `forward` is recorded. It may move between devices, before and after.
        **options: See `ReplayOptions`.

    Raises:
        OptionError: An option is wrong, or the network cannot be recorded at all.

    Example:
        >>> with NetworkReplay(network) as replay:
        ...     for images, targets in batches:
        ...         loss(network(images), targets).backward()
        >>> print(replay.report())
    """

    # What captures and replays. Only the tests of this package put another one in.
    recorder_type: type[Recorder] = Recorder

    def __init__(self, network: nn.Module, **options: Any) -> None:
        _require_recordable(network)
        self.network = network
        self.options = ReplayOptions.from_keywords(options)
        self._ledger = Ledger(self.options)
        self._wiring = Wiring(network)
        self._route: Route | None = None
        self._recorder: Recorder | None = None
        self._turn: weakref.ref[Turn] | None = None
        self._moves = Moves()
        self._lent: set[GradientMemory] = set()
        self._backwards = Backwards(self._retire_overlapping)
        self._final: Label | None = None
        self._unsparing = False

    def attach(self) -> NetworkReplay:
        """Send the network's forwards through here, until `detach`.

        Raises:
            OptionError: Another replay is attached to the network.
        """
        if self._route is None:
            if isinstance(vars(self.network).get("forward"), Route):
                kind = type(self.network).__name__
                raise OptionError(
                    f"network={kind} is replayed by another NetworkReplay already; close() that one first"
                )
            self._route = Route(self.network, self.forward)
        return self

    def detach(self) -> None:
        """Give the network its own forward back. Recordings stay, for another `attach`."""
        if self._route is not None:
            self._route.remove()
            self._route = None

    def close(self) -> None:
        """Detach, and give back all memory; the report stays. A backward still to come keeps what it needs.

        All graphs go at once, after the GPU has finished: see `Recorder` on what destroying one of them does.
        """
        self.detach()
        self._discard()
        self._backwards.forget()

    def _discard(self) -> None:
        if self._recorder is not None:
            self._recorder.wait()
        for entry in self._ledger.entries.values():
            entry.recording = None
        self._moves = Moves()
        self._lent.clear()
        self._recorder = None

    def __enter__(self) -> NetworkReplay:
        return self.attach()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> NetworkReplay:
        return type(self)(copy.deepcopy(self.network, memo), **asdict(self.options))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.network, asdict(self.options))

    def report(self) -> Report:
        """Counts and retirements so far."""
        return self._ledger.report()

    def retire(self, label: Label) -> None:
        """Give replay up for the whole network, for good.

        Raises:
            RetiredError: With `strict=True`.
        """
        self._final = label
        self._ledger.retire_all(label, label.reason)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """One training forward: replayed where a recording serves it, else native, and right in both cases.

        Raises:
            RetiredError: With `strict=True`, where something would be retired.
        """
        native = self.network.forward if self._route is None else self._route.native
        run = partial(native, *args, **kwargs)
        if not torch.is_grad_enabled() or not self.network.training:
            return self._outside("evaluation", run)
        try:
            recorder = self._ready_recorder()
            layout, tensors = Layout.of(args, kwargs, self._wiring.training(), self._wiring.wanting())
            entry = self._ledger.entry(layout) if layout.wants_gradients() else None
        except UnrecordableError as refusal:
            self._ledger.retire_all(refusal.label, str(refusal), refusal)
            return self._outside(refusal.label.value, run)
        if entry is None:
            return self._outside(_NO_GRADIENTS, run)
        served = self._recording_or_cause(entry, recorder, tensors, native)
        if isinstance(served, Recording):
            recorder.follow()
            return self._replay(entry, served, tensors)
        spare = served == "observed" and recorder.holds_memory and self.options.offload and not self._unsparing
        entry.native[served] += 1
        run = partial(self._spared, recorder, tensors, run) if spare else run
        result, wanted = self._watched(entry, run, tensors)
        if not wanted:
            _recount(entry.native, served, _NO_GRADIENTS)
        return result

    def _outside(self, cause: str, run: Callable[[], Any]) -> Any:
        """Run a forward natively that belongs to no layout."""
        self._ledger.native[cause] += 1
        return self._watched(None, run)[0]

    def _ready_recorder(self) -> Recorder:
        """Where to record the network, unless something forbids it whatever its inputs.

        Raises:
            UnrecordableError: With the reason.
        """
        if self._final is not None:
            raise UnrecordableError(self._final)
        self._wiring.refresh()
        device = self._wiring.device()
        if self._recorder is not None and self._recorder.device != device:
            self._discard()
        if device is None or device.type != self.recorder_type.kind:
            raise UnrecordableError(Label.DEVICE, f"its weights are on {device}")
        if self._wiring.hooked():
            raise UnrecordableError(Label.HOOKS)
        if _saving_is_hooked():
            raise UnrecordableError(Label.HOOKS, "on saved tensors")
        if self._recorder is None:
            if _in_several_processes():
                raise UnrecordableError(Label.DISTRIBUTED)
            self._recorder = self.recorder_type(device)
        return self._recorder

    def _recording_or_cause(
        self, entry: Entry, recorder: Recorder, tensors: list[torch.Tensor], native: Callable[..., Any]
    ) -> Recording | str:
        """The recording that serves this forward, made now if need be; else the cause for which it runs native."""
        if entry.retired is not None:
            return entry.retired.value
        turn = None if self._turn is None else self._turn()
        if turn is not None and not turn.spent:
            return "overlapping"
        if (cached := _weights_are_cached(self._wiring.modules)) or recorder.is_capturing():
            return "weights-cached" if cached else "capturing"
        if not reclaim(self._wiring.parameters(), self._lent):
            return "gradients-held"
        self._lent.clear()
        if entry.recording is None or not entry.recording.serves(self._wiring.fingerprint()):
            if entry.sightings < self.options.sightings:
                return "observed"
            self._record(entry, recorder, tensors, native)
        return _recording_or_cause_of(entry)

    def _record(
        self, entry: Entry, recorder: Recorder, tensors: list[torch.Tensor], native: Callable[..., Any]
    ) -> None:
        """Make the entry's recording, or retire it."""
        if entry.recording is not None:
            self._moves.note(entry)
            entry.recording = None
        self._wiring.walk()
        try:
            self._require_layout(entry, recorder.device)
            entry.recording = record(
                self._wiring,
                native,
                recorder,
                entry.layout,
                demand=entry.demand,
                inputs=tensors,
                warmup=self.options.warmup,
            )
        except UnrecordableError as refusal:
            self._ledger.retire(entry, refusal.label, str(refusal), refusal)
        # Whatever the network's own code raises while it is recorded: the native run decides what becomes of the fit.
        except Exception as error:  # noqa: BLE001
            self._ledger.retire(entry, Label.CAPTURE, f"{Label.CAPTURE.reason}: {_first_cause(error)}", error)
        else:
            entry.recorded += 1
            self._moves.begin(entry)

    def _require_layout(self, entry: Entry, device: torch.device) -> None:
        """Refuse what can be known of this layout before anything is captured.

        Raises:
            UnrecordableError: With the reason.
        """
        self._moves.require_rest(entry)
        if entry.beyond_replay:
            raise UnrecordableError(Label.BACKWARDS, entry.beyond_replay)
        if entry.several_backwards:
            raise UnrecordableError(Label.BACKWARDS)
        if any(form.device != device for form in entry.layout.tensors):
            raise UnrecordableError(Label.STRUCTURE, f"an input is not on {device}")
        if any(tensor.device != device for tensor in self._wiring.tensors()):
            raise UnrecordableError(Label.DEVICE, f"a weight or buffer is not on {device}")
        if (loose := self._wiring.without_address()) is not None:
            raise UnrecordableError(Label.CAPTURE, f"{loose} is sparse or of a class without memory; make it dense")
        for name, buffer in self.network.named_buffers():
            if buffer.requires_grad:
                raise UnrecordableError(Label.CAPTURE, f"buffer {name} wants a gradient; make it an nn.Parameter")
        if entry.layout.uses(torch.bfloat16) and not has_bfloat16(device):
            raise UnrecordableError(Label.BF16)

    def _replay(self, entry: Entry, recording: Recording, tensors: list[torch.Tensor]) -> Any:
        """Replay the entry's forward; its backward follows through autograd."""
        turn = Turn(recording, entry.layout, self._wiring, partial(self._note_backward, entry))
        self._turn = weakref.ref(turn)
        outputs = Replay.apply(turn, len(tensors), *tensors, *recording.weights)
        entry.replayed += 1
        return rebuild(recording.node, outputs, [*tensors, *recording.tensors])

    def _note_backward(self, entry: Entry, turn: Turn, service: Service, demand: Demand) -> None:
        """Take down a backward that reached a replayed forward, how it is served, and what it was given."""
        self._backwards.note(turn.key)
        if service is Service.REPLAYED:
            self._lent.add(turn.recording.memory)
            turn.recording.served = True
            return
        entry.recomputed += 1
        if entry.retired is not None:
            return
        fresh = service is Service.RECOMPUTED and entry.recording is turn.recording and not turn.recording.served
        if fresh and entry.learn(demand):
            return
        if service is not Service.RECOMPUTED:
            self._ledger.retire(entry, Label.BACKWARDS, f"{Label.BACKWARDS.reason}: {service.value}")
        elif entry.recomputed > _RECOMPUTES:
            self._ledger.retire(entry, Label.GRADIENTS, f"{Label.GRADIENTS.reason}: {entry.recomputed} times")

    def _retire_overlapping(self) -> None:
        if self._final is None:
            self.retire(Label.OVERLAPPING)

    def _spared(self, recorder: Recorder, tensors: list[torch.Tensor], run: Callable[[], Any]) -> Any:
        """Run the network natively, and spare the device a second set of activations beside the recordings'.

        Not every network bears that: torch refuses hooks on saved tensors beside `torch.func.grad` and its like, and in
        regions that switch them off. Such a network is put back to where it was, and run as it is from then on.
        """
        before = Preservation(self._wiring, recorder.device)
        try:
            with offloaded(recorder.device, [*self._wiring.tensors(), *tensors]):
                return run()
        except RuntimeError as error:
            if not is_refusal(error):
                raise
            before.restore()
        # Outside of the handler, which would hold what the first run had kept.
        self._unsparing = True
        return run()

    def _watched(
        self, entry: Entry | None, run: Callable[[], Any], tensors: Sequence[torch.Tensor] = ()
    ) -> tuple[Any, bool]:
        """Run a native forward, and watch it to learn what its backward asks for, and which forwards share one.

        Returns:
            Its result, and False where the outputs are known and none of them requires a gradient.
        """
        begin = torch.autograd._get_sequence_nr()
        result = run()
        if self._recorder is None or self._final is not None or not torch.is_grad_enabled():
            return result, True
        outputs: list[torch.Tensor] = []
        try:
            flatten(result, outputs, known([*tensors, *self._wiring.tensors()]))
        except UnrecordableError as refusal:
            if entry is not None and entry.retired is None:
                self._ledger.retire(entry, refusal.label, str(refusal), refusal)
            return result, True
        if not any(output.requires_grad for output in outputs):
            return result, False
        Sighting(entry, outputs, self._backwards, begin)
        return result, True


def _recount(native: Counter[str], before: str, now: str) -> None:
    """Take one forward from one cause to another."""
    native[before] -= 1
    native += Counter()
    native[now] += 1


def _recording_or_cause_of(entry: Entry) -> Recording | str:
    if entry.recording is None:
        return Label(entry.retired).value
    return "unused-hooked" if entry.recording.has_hooks_in_vain() else entry.recording


def _require_recordable(network: object) -> None:
    if not isinstance(network, nn.Module):
        raise OptionError(f"network={network!r} must be a torch.nn.Module")
    if getattr(network, "_compiled_call_impl", None) is not None:
        raise OptionError(f"network is a {type(network).__name__} compiled in place by its compile(); leave that out")
    if isinstance(network, torch.jit.ScriptModule) or hasattr(network, "_orig_mod"):
        raise OptionError(f"network is a compiled {type(network).__name__}; hand over the module it was made from")
    for name, held in chain(network.named_parameters(), network.named_buffers()):
        if is_lazy(held):
            raise OptionError(f"network has no shape for its lazy {name} yet; call the network once, natively, before")


def _in_several_processes() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _saving_is_hooked() -> bool:
    """Whether the caller has hooks on saved tensors, like `save_on_cpu`, in force. What they make of an activation is
    what the native backward computes with, and a replay would not ask them."""
    try:
        # The only question to torch that all versions answer; newer ones can name the hooks.
        with torch.autograd.graph.disable_saved_tensors_hooks(""):
            return False
    except RuntimeError:
        return True


def _weights_are_cached(modules: list[nn.Module]) -> bool:
    """Whether torch keeps what parametrizations compute, in `parametrize.cached()`, together with its graph. What
    warm-up and capture put in there would be of no use to native forwards, and theirs none to a capture."""
    return bool(parametrize._cache_enabled) and any(isinstance(one, parametrize.ParametrizationList) for one in modules)


def _unpickled(kind: type[NetworkReplay], network: nn.Module, options: dict[str, Any]) -> NetworkReplay:
    return kind(network, **options)


def _first_cause(error: BaseException) -> str:
    """The first line of the error that began it: ending a broken capture raises another one on top."""
    while error.__context__ is not None:
        error = error.__context__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
