"""Messages as JSON-able data and back, loud on what does not fit. Standard library only, like the messages."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def encode(message: Any) -> Any:
    """The JSON-able form of a message; enumerations become their values and tuples become lists."""
    if dataclasses.is_dataclass(message) and not isinstance(message, type):
        return {f.name: encode(getattr(message, f.name)) for f in dataclasses.fields(message)}
    if isinstance(message, enum.Enum):
        return message.value
    if isinstance(message, Mapping):
        return {str(key): encode(value) for key, value in message.items()}
    if isinstance(message, (tuple, list)):
        return [encode(value) for value in message]
    return message


def decode(shape: type[T], data: Any) -> T:
    """The message of ``shape`` that ``data`` describes. Keys that the shape lacks are ignored, so that a newer service
    may say more.

    Raises:
        ValueError: a required key is missing, or a value does not fit; the text names the key.
    """
    return typing.cast("T", _decode(shape, data, shape.__name__))


def _decode(shape: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(shape)
    if shape is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(shape), data, where)
    if origin is tuple:
        (item, _) = typing.get_args(shape)
        if not isinstance(data, (list, tuple)):
            raise ValueError(f"{where}: expected a list, got {data!r:.80}")
        return tuple(_decode(item, value, f"{where}[{index}]") for index, value in enumerate(data))
    if origin is Literal:
        if data not in typing.get_args(shape):
            raise ValueError(f"{where}: expected one of {typing.get_args(shape)}, got {data!r:.80}")
        return data
    if dataclasses.is_dataclass(shape):
        return _decode_dataclass(shape, data, where)
    return _decode_plain(origin or shape, data, where)


def _decode_union(members: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and types.NoneType in members:
        return None
    rest = [member for member in members if member is not types.NoneType]
    if len(rest) == 1:
        return _decode(rest[0], data, where)
    kind = data.get("kind") if isinstance(data, Mapping) else None
    for member in rest:
        if getattr(member, "kind", None) == kind:
            return _decode(member, data, where)
    raise ValueError(f"{where}: no message of kind {kind!r}")


def _decode_dataclass(shape: Any, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected an object, got {data!r:.80}")
    hints = typing.get_type_hints(shape)
    values = {}
    for item in dataclasses.fields(shape):
        if item.name in data:
            values[item.name] = _decode(hints[item.name], data[item.name], f"{where}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{item.name}: missing")
    return shape(**values)


def _decode_plain(shape: Any, data: Any, where: str) -> Any:
    if isinstance(shape, type) and issubclass(shape, enum.Enum):
        return shape(data)
    if shape is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    wanted = Mapping if shape is Mapping or shape is typing.get_origin(Mapping[str, Any]) else shape
    if not isinstance(data, wanted) or (shape is int and isinstance(data, bool)):
        raise ValueError(f"{where}: expected {getattr(shape, '__name__', shape)}, got {data!r:.80}")
    return data
