"""Nested inputs and outputs, taken apart into tensors and a hashable remainder, and put together again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from graphreplay.errors import UnrecordableError
from graphreplay.labels import Label

_PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format)
_MAPPINGS = (dict, OrderedDict)


class Node(NamedTuple):
    """One level of a nested value. Equal nodes mean: same containers, same keys, same plain values."""

    kind: str
    detail: Any  # Hashable.
    children: tuple[Node, ...] = ()


_TENSOR = Node("tensor", None)


def known(tensors: Iterable[torch.Tensor]) -> dict[int, Node]:
    """For `flatten`: the nodes of tensors that whoever rebuilds will have, by their ids."""
    found: dict[int, Node] = {}
    for index, tensor in enumerate(tensors):
        found.setdefault(id(tensor), Node("given", index))
    return found


def given_in(node: Node) -> set[int]:
    """Which of the tensors that were known are in `node`, by their positions."""
    return set().union(*map(given_in, node.children)) if node.kind != "given" else {node.detail}


_NO_KEYWORDS = Node("dict", ())


@lru_cache(maxsize=64)
def _tensors_only(count: int) -> Node:
    return Node("tuple", None, (Node("tuple", None, (_TENSOR,) * count), _NO_KEYWORDS))


def flatten_call(args: tuple[object, ...], kwargs: dict[str, object], tensors: list[torch.Tensor]) -> Node:
    """`flatten` of `(args, kwargs)`, with a short way for the usual call: some dense tensors and nothing else.

    Raises:
        UnrecordableError: See `flatten`.
    """
    dense = not kwargs and all(type(one) is torch.Tensor and one.layout is torch.strided for one in args)
    if dense and (len(args) == 1 or len(set(map(id, args))) == len(args)):
        tensors.extend(args)  # type: ignore[arg-type]  # All are tensors.
        return _tensors_only(len(args))
    return flatten((args, kwargs), tensors)


def flatten(value: object, tensors: list[torch.Tensor], seen: dict[int, Node] | None = None) -> Node:
    """Append `value`'s tensors to `tensors`, in order, each once, and return what remains.

    Args:
        value: What to take apart.
        tensors: Empty at first.
        seen: What `known` says of tensors that are not to be appended; changed.

    Raises:
        UnrecordableError: Something is neither a tensor, a container or dataclass that can be made anew, nor a plain
            value.
    """
    if seen is None:
        seen = {}
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _flatten_tensor(value, tensors, seen)  # type: ignore[arg-type]
    parts = _parts_of(value)
    if parts is None:
        return _leaf_of(value)
    name, detail, items = parts
    return Node(name, detail, tuple(flatten(item, tensors, seen) for item in items))


def _parts_of(value: Any) -> tuple[str, Any, Iterable[object]] | None:
    """The kind of a container, what must be equal in its like, and what it holds."""
    kind = type(value)
    if kind in _MAPPINGS:
        return kind.__name__, tuple(value), value.values()
    if kind in (tuple, list):
        return kind.__name__, None, value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "namedtuple", kind, value
    if is_dataclass(value) and _can_be_made_anew(value):
        return "dataclass", kind, _fields_of(value).values()
    return None


def _leaf_of(value: Any) -> Node:
    kind = type(value)
    if kind is float:
        # By its bits: a NaN must equal itself, and 0.0 must differ from -0.0.
        return Node("float", value.hex())
    if kind is torch.Size:
        return Node("size", tuple(value))
    if kind in _PLAIN:
        return Node("plain", (kind, value))
    raise UnrecordableError(Label.STRUCTURE, f"found a {kind.__module__}.{kind.__qualname__}")


def _flatten_tensor(value: torch.Tensor, tensors: list[torch.Tensor], seen: dict[int, Node]) -> Node:
    if (before := seen.get(id(value))) is not None:
        return before
    if value.layout is not torch.strided:
        raise UnrecordableError(Label.STRUCTURE, f"found a tensor of layout {value.layout}")
    seen[id(value)] = Node("same", len(tensors))
    tensors.append(value)
    return _TENSOR


def _fields_of(value: Any) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _can_be_made_anew(value: Any) -> bool:
    """Whether this dataclass, called with the fields of `value`, gives its like: nothing beside them, and each as it
    was handed in."""
    kind = type(value)
    if isinstance(value, (type, nn.Module, tuple, list)) or not all(field.init for field in fields(value)):
        return False
    held = _fields_of(value)
    if not getattr(value, "__dict__", {}).keys() <= held.keys():
        return False
    try:
        anew = kind(**held)
    except Exception:  # noqa: BLE001  # It takes more than its fields, or its own code says anything else of them.
        return False
    same = all(getattr(anew, name) is item for name, item in held.items())
    return same and (not isinstance(value, dict) or list(anew) == list(value))


def rebuild(node: Node, tensors: Iterable[torch.Tensor], given: Sequence[torch.Tensor] = ()) -> Any:
    """The inverse of `flatten`: the nested value of `node`, with `tensors` in the places of its own, and those of
    `given` in the places of the known ones."""
    return _rebuild(node, iter(tensors), [], given)


def _rebuild(
    node: Node, tensors: Iterator[torch.Tensor], taken: list[torch.Tensor], given: Sequence[torch.Tensor]
) -> Any:
    if node.kind == "tensor":
        taken.append(next(tensors))
        return taken[-1]
    if node.kind in _LEAVES:
        return _LEAVES[node.kind](node.detail, taken, given)
    items = [_rebuild(child, tensors, taken, given) for child in node.children]
    return _CONTAINERS[node.kind](node.detail, items)


_LEAVES: dict[str, Callable[[Any, list[torch.Tensor], Sequence[torch.Tensor]], object]] = {
    "same": lambda index, taken, _: taken[index],
    "given": lambda index, _, given: given[index],
    "plain": lambda detail, *_: detail[1],
    "float": lambda bits, *_: float.fromhex(bits),
    "size": lambda lengths, *_: torch.Size(lengths),
}
_CONTAINERS: dict[str, Callable[[Any, list[Any]], object]] = {
    "tuple": lambda _, items: tuple(items),
    "list": lambda _, items: items,
    "dict": lambda keys, items: dict(zip(keys, items, strict=True)),
    "OrderedDict": lambda keys, items: OrderedDict(zip(keys, items, strict=True)),
    "namedtuple": lambda kind, items: kind(*items),
    "dataclass": lambda kind, items: kind(**dict(zip((one.name for one in fields(kind)), items, strict=True))),
}
