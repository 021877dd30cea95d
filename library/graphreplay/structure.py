"""Nested inputs and outputs, taken apart into tensors and a hashable remainder, and put together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from graphreplay.errors import UnrecordableError
from graphreplay.labels import Label

_PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format)


class Node(NamedTuple):
    """One level of a nested value. Equal nodes mean: same containers, same keys, same plain values."""

    kind: str
    detail: Any  # Hashable.
    children: tuple[Node, ...] = ()


_TENSOR = Node("tensor", None)


_NO_KEYWORDS = Node("dict", ())


@lru_cache(maxsize=64)
def _tensors_only(count: int) -> Node:
    return Node("tuple", None, (Node("tuple", None, (_TENSOR,) * count), _NO_KEYWORDS))


def flatten_call(args: tuple[object, ...], kwargs: dict[str, object], tensors: list[torch.Tensor]) -> Node:
    """`flatten` of `(args, kwargs)`, with a short way for the usual call: some dense tensors and nothing else.

    Raises:
        UnrecordableError: See `flatten`.
    """
    if not kwargs and all(type(one) is torch.Tensor and one.layout is torch.strided for one in args):
        tensors.extend(args)  # type: ignore[arg-type]  # All are tensors.
        return _tensors_only(len(args))
    return flatten((args, kwargs), tensors)


def flatten(value: object, tensors: list[torch.Tensor]) -> Node:
    """Append `value`'s tensors to `tensors`, in order, and return what remains.

    Raises:
        UnrecordableError: Something is neither a tensor, a tuple, a list, a dict, nor a plain value.
    """
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _flatten_tensor(value, tensors)  # type: ignore[arg-type]
    if kind is dict:
        return _flatten_dict(value, tensors)  # type: ignore[arg-type]
    if kind in (tuple, list):
        return Node(kind.__name__, None, tuple(flatten(item, tensors) for item in value))  # type: ignore[attr-defined]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Node("namedtuple", kind, tuple(flatten(item, tensors) for item in value))
    if kind is float:
        # By its bits: a NaN must equal itself, and 0.0 must differ from -0.0.
        return Node("float", value.hex())  # type: ignore[attr-defined]
    if kind in _PLAIN:
        return Node("plain", (kind, value))
    raise UnrecordableError(Label.STRUCTURE, f"found a {kind.__module__}.{kind.__qualname__}")


def _flatten_tensor(value: torch.Tensor, tensors: list[torch.Tensor]) -> Node:
    if value.layout is not torch.strided:
        raise UnrecordableError(Label.STRUCTURE, f"found a tensor of layout {value.layout}")
    tensors.append(value)
    return _TENSOR


def _flatten_dict(value: dict[Any, object], tensors: list[torch.Tensor]) -> Node:
    return Node("dict", tuple(value), tuple(flatten(item, tensors) for item in value.values()))


def rebuild(node: Node, tensors: Iterable[torch.Tensor]) -> Any:
    """The inverse of `flatten`: the nested value of `node`, with `tensors` in the places of its own."""
    return _rebuild(node, iter(tensors))


def _rebuild(node: Node, tensors: Iterator[torch.Tensor]) -> Any:
    if node.kind == "tensor":
        return next(tensors)
    if node.kind == "plain":
        return node.detail[1]
    if node.kind == "float":
        return float.fromhex(node.detail)
    items = [_rebuild(child, tensors) for child in node.children]
    if node.kind == "dict":
        return dict(zip(node.detail, items, strict=True))
    if node.kind == "namedtuple":
        return node.detail(*items)
    return tuple(items) if node.kind == "tuple" else items
