"""The layout key: all that must be equal between a recording and a call that it may serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from graphreplay.errors import UnrecordableError
from graphreplay.kernels import kernel_choice
from graphreplay.labels import Label
from graphreplay.structure import Node, flatten_call

# The caching allocator aligns to 512 bytes; a view into a batch may start anywhere, and cuDNN and the vectorised
# reductions choose their kernels by alignment. So a static copy keeps the address modulo this.
ALIGNMENT = 512


class TensorForm(NamedTuple):
    """The form of one tensor: everything `copy_` would otherwise paper over by broadcasting or casting."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    alignment: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorForm:
        """The form of `tensor`."""
        address = tensor.data_ptr() % ALIGNMENT if tensor.is_cuda else 0
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, address)

    def require_writable(self) -> None:
        """Refuse an expanded tensor.

        Raises:
            UnrecordableError: Elements share memory, so that nothing can be copied into a tensor of this form.
        """
        if any(stride == 0 and length > 1 for length, stride in zip(self.shape, self.stride, strict=True)):
            raise UnrecordableError(Label.STRUCTURE, f"{self} is an expanded tensor; call contiguous() on it")

    def is_dense(self) -> bool:
        """Whether `torch.empty_like` gives memory of this form: without gaps, from an aligned address on."""
        model = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        return self.alignment == 0 and torch.empty_like(model).stride() == self.stride

    def empty(self) -> torch.Tensor:
        """Fresh memory of exactly this form; `empty_like` would change stride and alignment of a view."""
        lead = self.alignment // self.dtype.itemsize
        reach = 1 + sum((length - 1) * stride for length, stride in zip(self.shape, self.stride, strict=True))
        memory = torch.empty(lead + max(reach, 1), dtype=self.dtype, device=self.device)
        return memory.as_strided(self.shape, self.stride, lead)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {str(self.dtype).removeprefix('torch.')}"


class AutocastForm(NamedTuple):
    """The caller's CUDA autocast settings. The weight cache counts: it decides in which precision the gradients of a
    weight used twice are summed."""

    enabled: bool
    dtype: torch.dtype
    cache: bool

    @classmethod
    def current(cls) -> AutocastForm:
        """The settings in force in this thread."""
        enabled = torch.is_autocast_enabled("cuda")
        return cls(enabled, torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled())

    def region(self) -> torch.autocast:
        """A context in which these settings are in force."""
        return torch.autocast("cuda", dtype=self.dtype, enabled=self.enabled, cache_enabled=self.cache)

    def __str__(self) -> str:
        if not self.enabled:
            return "no autocast"
        return f"autocast {str(self.dtype).removeprefix('torch.')} cache {'on' if self.cache else 'off'}"


@dataclass(frozen=True)
class Layout:
    """One input signature. Equal layouts may share a recording; `str()` of it is the name that reports use.

    Attributes:
        inputs: The call without its tensors.
        tensors: The forms of those, in order.
        autocast: The caller's settings.
        training: Each module's training flag.
        wanting: For each weight, whether it wants a gradient.
        kernels: The switches by which torch picks kernels, and the default type of tensors.
    """

    inputs: Node
    tensors: tuple[TensorForm, ...]
    autocast: AutocastForm
    training: tuple[bool, ...]
    wanting: tuple[bool, ...]
    kernels: tuple[object, ...]

    @classmethod
    def of(
        cls,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        training: tuple[bool, ...],
        wanting: tuple[bool, ...] = (),
    ) -> tuple[Layout, list[torch.Tensor]]:
        """The layout of a call, and the call's tensors.

        Raises:
            UnrecordableError: An input is of a kind that cannot be taken apart.
        """
        tensors: list[torch.Tensor] = []
        inputs = flatten_call(args, kwargs, tensors)
        forms = tuple(map(TensorForm.of, tensors))
        return cls(inputs, forms, AutocastForm.current(), training, wanting, kernel_choice()), tensors

    def uses(self, dtype: torch.dtype) -> bool:
        """Whether inputs or autocast bring `dtype` in."""
        cast = self.autocast.enabled and self.autocast.dtype is dtype
        return cast or any(form.dtype is dtype for form in self.tensors)

    def wants_gradients(self) -> bool:
        """Whether an input or a weight wants one. If not, no output has a backward."""
        return any(self.wanting) or any(form.requires_grad for form in self.tensors)

    def __str__(self) -> str:
        notes = [", ".join(map(str, self.tensors)), str(self.autocast)]
        if resting := self.training.count(False):
            notes.append(f"{resting} modules in eval")
        if frozen := self.wanting.count(False):
            notes.append(f"{frozen} weights frozen")
        return "; ".join(notes)
