"""Why a forward ran native: the closed set of retirement labels, each with the sentence a report shows."""

from __future__ import annotations

from enum import Enum


class Label(str, Enum):  # noqa: UP042  # StrEnum came with Python 3.11.
    """Why replay was given up, for one layout or for the whole network. The value is what a report's JSON holds."""

    DEVICE = "device"
    BF16 = "bf16-unsupported"
    DISTRIBUTED = "distributed"
    STRUCTURE = "structure"
    LAYOUTS = "layouts-cap"
    HOOKS = "hooks"
    CAPTURE = "capture-failed"
    STATE = "module-state"
    RANDOM = "host-random"
    INPUT = "input-mutated"
    MOVED = "parameters-moved"
    GRADIENTS = "gradients-vary"
    BACKWARDS = "several-backwards"
    OVERLAPPING = "overlapping"

    @property
    def reason(self) -> str:
        """One sentence for a reader who has never seen the source."""
        return _REASONS[self]


_REASONS = {
    Label.DEVICE: "the network is not on a CUDA device, and only CUDA work can be recorded",
    Label.BF16: "this GPU has no bfloat16 arithmetic of its own (compute capability below 8.0)",
    Label.DISTRIBUTED: "the fit runs in several processes, for which replay has not been proven",
    Label.STRUCTURE: "an input or output is of a kind or form that cannot be recorded",
    Label.LAYOUTS: "the cap on layouts is reached; raise `layouts`, or pad inputs to fewer shapes",
    Label.HOOKS: "hooks on inner modules, all modules or saved tensors are in force, and a replay would not call them",
    Label.CAPTURE: "the network could not be captured",
    Label.STATE: "the forward replaces attributes, buffers or weights of its modules, which a replay would not do",
    Label.RANDOM: "the forward draws random numbers on the host, which a replay would not draw again",
    Label.INPUT: "the forward writes into its input, and a replay would write into its own copy",
    Label.MOVED: "weights or buffers keep moving, or attributes of modules changing, so every recording goes stale",
    Label.GRADIENTS: "the gradients of the outputs keep coming in another form or autocast region than recorded",
    Label.BACKWARDS: "a forward gets several backwards or one with create_graph=True; a replay serves a plain one",
    Label.OVERLAPPING: "several forwards share one backward, and replayed gradients would be summed in another order",
}
