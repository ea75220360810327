"""Frozen dataclasses as JSON values and back: what a setup file holds. It opens nothing."""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from ..errors import OperatorError

WAY_OUT = "start it with the supervisor of the same version"
T = TypeVar("T")


def encode(value: Any) -> Any:
    """A JSON value of a dataclass and of all that it holds."""
    if is_dataclass(value):
        return {one.name: encode(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], value: Any, place: str) -> T:
    """A dataclass from its JSON value. Raises OperatorError; place is the file's path."""
    decoded: T = _section(cls, value, place, "")
    return decoded


def _section(cls: Any, value: Any, place: str, path: str) -> Any:
    if not isinstance(value, dict):
        _fail(place, path, "is not a mapping")
    hints = {one.name: one.type for one in fields(cls)}
    for name in value.keys() ^ hints.keys():
        _fail(place, f"{path}.{name}", "is missing" if name in hints else "is unknown")
    found = {name: _value(hints[name], value[name], place, f"{path}.{name}") for name in hints}
    return cls(**found)


def _value(hint: Any, value: Any, place: str, path: str) -> Any:
    if is_dataclass(hint):
        return _section(hint, value, place, path)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is types.UnionType:  # T | None
        return None if value is None else _value(arguments[0], value, place, path)
    if origin is Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list):
        item = arguments[0]
        return tuple(_value(item, one, place, path) for one in value)
    if origin is Mapping and isinstance(value, dict):
        make_key, item = arguments
        return {
            make_key(key): _value(item, one, place, f"{path}.{key}") for key, one in value.items()
        }
    if type(value) is not hint:
        _fail(place, path, f"is not {getattr(hint, '__name__', hint)}")
    return value


def _fail(place: str, path: str, problem: str) -> NoReturn:
    raise OperatorError(f"{place}: {path.removeprefix('.')}", problem, WAY_OUT)
